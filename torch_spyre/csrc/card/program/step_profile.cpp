#include "program/step_profile.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "program/program.h"

namespace spyre::card {
namespace {

std::atomic<bool> profiling = false;
std::mutex mutex;
std::vector<std::vector<StepTimes>> tables;  // by program
std::map<const ParsedProgram*, size_t> table_of;

bool is_table_of(const std::vector<StepTimes>& table, const ParsedProgram& program) {
  return std::equal(table.begin(), table.end(), program.steps.begin(), program.steps.end(),
                    [](const StepTimes& row, const ProgramStep& step) {
                      return row.name == step.head.name && row.kind == step.head.kind;
                    });
}

}  // namespace

void start_step_profile() {
  const std::lock_guard lock(mutex);
  tables.clear();
  table_of.clear();
  profiling = true;
}

std::vector<StepTimes> stop_step_profile() {
  const std::lock_guard lock(mutex);
  profiling = false;
  std::vector<StepTimes> rows;
  for (const auto& table : tables) {
    for (const StepTimes& row : table) {
      if (row.count > 0) rows.push_back(row);
    }
  }
  return rows;
}

bool is_profiling_steps() { return profiling.load(std::memory_order_relaxed); }

void note_step(const ParsedProgram& program, size_t step, double seconds) {
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = table_of.try_emplace(&program, tables.size());
  // Another program may have taken the place of one that is gone.
  const bool is_other = !is_new && !is_table_of(tables[entry->second], program);
  if (is_other) entry->second = tables.size();
  if (is_new || is_other) {
    auto& table = tables.emplace_back();
    for (const ProgramStep& s : program.steps) {
      table.push_back({s.head.name, s.head.kind, 0, 0, s.head.device_us});
    }
  }
  StepTimes& row = tables[entry->second][step];
  row.count += 1;
  row.fastest = row.count == 1 ? seconds : std::min(row.fastest, seconds);
}

}  // namespace spyre::card
