// Steps on the shadows that are no tile programs: products, moves over the ring, gather, scatter,
// topk.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "sanitizer/shadow_lanes.h"
#include "sanitizer/shadow_run.h"
#include "sanitizer/shadow_walk.h"

namespace spyre::card {

// ---- Products -----------------------------------------------------------------------------------

namespace {
constexpr int kX = 0, kY = 1, kOut = 2;  // numbers of a product's operands
}

void ShadowRun::run_matmul(const ShadowMatmul& step) {
  for (const std::vector<int>& team : step.teams) run_product(step, team);
}

// One row of x over the depth of a core.
ShadowRun::Register ShadowRun::row_of_x(const ShadowMatmul& step, int core, int64_t offset,
                                        int64_t depth) {
  const int lanes = static_cast<int>(elems_per_stick(step.x.format));
  const int bytes = bytes_per_lane(step.x.format);
  Register row;
  for (int64_t k = 0; k < depth; k += lanes, offset += step.x.strides[step.batch + 1]) {
    Bits data;
    uint64_t tag = 0;
    read_stick(kX, core, offset, data, tag);
    row.tag = mix(row.tag, tag);
    const int used = static_cast<int>(std::min<int64_t>(lanes, depth - k));
    if (data.covers(Bits::range(0, used * bytes))) continue;
    const int lane = lanes_of(data, bytes).first_missing_of(Bits::range(0, used));
    report("reads padding as data: a product adds up lanes that hold none", kX, core, offset,
           "lane " + std::to_string(lane) + " of a stick");
  }
  row.tag = mix(row.tag, depth);
  return row;
}

// For each stick of the result what its columns of y hold.
std::vector<ShadowRun::Register> ShadowRun::columns_of_y(const ShadowMatmul& step, int core,
                                                         int64_t offset, int64_t columns,
                                                         int64_t depth, int out_lanes) {
  const int lanes = static_cast<int>(elems_per_stick(step.y.format));
  const int bytes = bytes_per_lane(step.y.format);
  const int64_t row_stride = step.y.strides[step.batch];
  const int64_t stick_stride = step.y.strides[step.batch + 1];
  const int64_t sticks = (columns + lanes - 1) / lanes;
  std::vector<Register> by_stick(sticks);
  for (int64_t k = 0; k < depth; k++) {
    for (int64_t s = 0; s < sticks; s++) {
      Bits data;
      uint64_t tag = 0;
      const int64_t at = offset + k * row_stride + s * stick_stride;
      read_stick(kY, core, at, data, tag);
      Register& column = by_stick[s];
      column.tag = mix(column.tag, tag);
      if (data.all()) continue;
      column.data = column.data & lanes_of(data, bytes);
      if (column.operand < 0) {
        column.operand = kY;
        column.offset = at;
      }
    }
  }
  std::vector<Register> result((columns + out_lanes - 1) / out_lanes);
  for (size_t i = 0; i < result.size(); i++) {
    const int64_t first = static_cast<int64_t>(i) * out_lanes;
    result[i].data = {};
    const int64_t end = std::min<int64_t>(first + out_lanes, columns);
    for (int64_t s = first / lanes; s * lanes < end; s++) {
      const Register& column = by_stick[s];
      result[i].tag = mix(result[i].tag, column.tag);
      if (column.operand >= 0) {
        result[i].operand = column.operand;
        result[i].offset = column.offset;
      }
      const int64_t shift = s * lanes - first;
      result[i].data =
          result[i].data |
          (shift < 0 ? shifted_right(column.data, static_cast<int>(-shift))
                     : shifted_left(column.data & Bits::range(0, lanes), static_cast<int>(shift)));
    }
    result[i].tag = mix(result[i].tag, first % lanes);
    result[i].data = result[i].data & Bits::range(0, static_cast<int>(end - first));
  }
  return result;
}

// Bytes to the matrix of a row. Which one it is depends on data that the reference does not have:
// the first one stands for all of them.
int64_t ShadowRun::chosen_matrix(const ShadowMatmul& step, int core, const Counter& batch,
                                 int64_t row, uint64_t& tag) {
  constexpr int64_t kIndicesPerStick = 32;
  const MatmulStep::Choice& choice = *step.choice;
  const int index = kOut + static_cast<int>(step.results.size());
  const int64_t along = choice.along_sticks ? choice.first[core] + row : 0;
  const int64_t element = batch.dot(choice.strides) + row * choice.strides.back() +
                          along / kIndicesPerStick * choice.stick_stride +
                          along % kIndicesPerStick * 4;
  const Where& place = where(index, core);
  const int64_t at = place.base + element;
  const int64_t stick = at / kStickBytes * kStickBytes - place.base;
  const int byte = static_cast<int>(at % kStickBytes);
  Bits data;
  const bool is_there = read_stick(index, core, stick, data, tag);
  tag = mix(tag, byte);
  if (!is_there || flow_ == Flow::REFERENCE) return 0;
  if (!data.covers(Bits::range(byte, 4))) {
    report("reads padding as data: an index that nobody wrote", index, core, stick,
           "byte " + std::to_string(byte) + " of the stick");
    return 0;
  }
  Sanitizer& sanitizer = launch_.sanitizer_;
  const std::byte* memory = addresses_[index]->space == Space::LX
                                ? sanitizer.lx()[core] + at
                                : sanitizer.memory().host(sanitizer.address_of(at));
  int32_t number;
  std::memcpy(&number, memory, sizeof(number));
  if (number < -choice.count || number >= choice.count) return 0;  // the step itself refuses it
  return (number < 0 ? number + choice.count : number) * choice.stride;
}

void ShadowRun::run_product(const ShadowMatmul& step, const std::vector<int>& team) {
  constexpr int kRegisters = 32;
  const int leader = team[0];
  const int64_t* extents = step.extents_of(leader);
  const int64_t rows = extents[step.batch], columns = extents[step.batch + 1];
  const int out_lanes = static_cast<int>(elems_per_stick(step.results[0].format));
  const int64_t sticks = (columns + out_lanes - 1) / out_lanes;
  if (rows == 0 || columns == 0) return;
  for (int core : team) {
    const int64_t* own = step.extents_of(core);
    std::vector<int64_t> x(own, own + step.batch), y = x, out = x;
    const auto sticks_of = [](int64_t elements, DataFormat format) {
      return (elements + elems_per_stick(format) - 1) / elems_per_stick(format);
    };
    x.insert(x.end(), {own[step.batch], sticks_of(own[step.batch + 2], step.x.format)});
    y.insert(y.end(), {own[step.batch + 2], sticks_of(columns, step.y.format)});
    out.insert(out.end(), {own[step.batch], sticks});
    const auto check = [&](int number, const std::vector<int64_t>& points,
                           const std::vector<int64_t>& strides) {
      const auto [low, high] = hull(points.data(), strides, step.batch + 2);
      check_span(number, core, low, high);
    };
    check(kX, x, step.x.strides);
    check(kY, y, step.y.strides);
    for (size_t i = 0; i < step.results.size(); i++) {
      check(kOut + static_cast<int>(i), out, step.results[i].strides);
    }
  }
  std::vector<int64_t> offsets(step.results.size());
  std::vector<Register> registers(kRegisters);
  std::vector<Register> sums(rows * sticks);
  std::map<int64_t, std::vector<Register>> known;  // columns of y by where they begin
  const auto columns_at = [&](int core, int64_t at) -> const std::vector<Register>& {
    const int64_t key = where(kY, core).base + at;
    auto entry = known.find(key);
    if (entry == known.end()) {
      const int64_t depth = step.extents_of(core)[step.batch + 2];
      entry = known.emplace(key, columns_of_y(step, core, at, columns, depth, out_lanes)).first;
    }
    return entry->second;
  };
  Counter batch(extents, step.batch);
  for (int64_t b = 0; b < batch.count(); b++, batch.next()) {
    for (Register& sum : sums) sum = Register{};
    for (int core : team) {
      const int64_t depth = step.extents_of(core)[step.batch + 2];
      const int64_t y_at = batch.dot(step.y.strides);
      if (team.size() > 1) known.clear();
      const std::vector<Register>& first = columns_at(core, y_at);
      for (int64_t m = 0; m < rows; m++) {
        const int64_t x_at = batch.dot(step.x.strides) + m * step.x.strides[step.batch];
        Register row = row_of_x(step, core, x_at, depth);
        const std::vector<Register>* used = &first;
        if (step.choice) {
          uint64_t tag = 0;
          used = &columns_at(core, y_at + chosen_matrix(step, core, batch, m, tag));
          row.tag = mix(row.tag, tag);
        }
        for (int64_t n = 0; n < sticks; n++) {
          const Register& column = (*used)[n];
          Register& sum = sums[m * sticks + n];
          sum.tag += mix(row.tag, first[n].tag);
          sum.data = sum.data & column.data;
          if (sum.operand < 0 && column.operand >= 0) {
            sum.operand = column.operand;
            sum.offset = column.offset;
          }
        }
      }
    }
    for (int64_t m = 0; m < rows; m++) {
      for (int64_t n = 0; n < sticks; n++) {
        for (size_t i = 0; i < offsets.size(); i++) {
          const std::vector<int64_t>& strides = step.results[i].strides;
          offsets[i] = batch.dot(strides) + m * strides[step.batch] + n * strides[step.batch + 1];
        }
        registers[0] = sums[m * sticks + n];
        execute(step.epilogue, step.results, leader, offsets.data(), 0, out_lanes, registers.data(),
                nullptr);
      }
    }
  }
}

// ---- Moves over the ring ------------------------------------------------------------------------

void ShadowRun::run_ring(const RingStep& step) {
  const int64_t sticks = step.sticks();
  for (const RingStep::Transfer& transfer : step.transfers) {
    for (int64_t n = 0; n < sticks; n++) {
      const auto [from, to] = step.stick(n);
      Bits data;
      uint64_t tag = 0;
      read_stick(0, transfer.source, transfer.source_offset + from, data, tag);
      write_stick(1, transfer.target, transfer.target_offset + to, data, tag);
    }
  }
}

// ---- Gather, scatter, topk ----------------------------------------------------------------------

void ShadowRun::run_gather(const GatherStep& step) {
  constexpr int kValue = 0, kIndex = 1, kResult = 2;
  constexpr int64_t kIndicesPerStick = 32;
  Sanitizer& sanitizer = launch_.sanitizer_;
  for (int core = 0; core < cores_; core++) {
    Counter point(step.extents.data() + core * step.dims, step.dims);
    for (int64_t p = 0; p < point.count(); p++, point.next()) {
      const int64_t value_at = point.dot(step.value.strides);
      const int64_t out_at = point.dot(step.out.strides);
      const int64_t along = step.stick_dim < 0 ? 0 : step.first_index[core] + point[step.stick_dim];
      const int64_t element = point.dot(step.index.strides) +
                              along / kIndicesPerStick * step.stick_stride +
                              along % kIndicesPerStick * 4;
      const Where& place = where(kIndex, core);
      const int64_t at = place.base + element;
      const int64_t stick = at / kStickBytes * kStickBytes - place.base;
      const int byte = static_cast<int>(at % kStickBytes);
      Bits data;
      uint64_t tag = 0;
      if (!read_stick(kIndex, core, stick, data, tag)) continue;
      // Which row it is depends on data that the reference does not have: the first one stands for
      // all of them.
      uint64_t value_tag = 0;
      Bits ignored;
      if (step.scatters) {
        read_stick(kValue, core, value_at, ignored, value_tag);
      } else if (is_inside(kValue, core, value_at, false)) {
        const Where& value = where(kValue, core);
        const int64_t first_row = value.base + value_at;
        value_tag = value.shadow->tag(flow_, first_row / kStickBytes, launch_.number_,
                                      value.initial_tag(first_row));
      }
      const uint64_t result_tag = mix(mix(tag, byte), value_tag);
      if (flow_ == Flow::REFERENCE) {
        if (!step.scatters) write_stick(kResult, core, out_at, {}, result_tag);
        continue;
      }
      if (!data.covers(Bits::range(byte, 4))) {
        report("reads padding as data: an index that nobody wrote", kIndex, core, stick,
               "byte " + std::to_string(byte) + " of the stick");
        continue;
      }
      int32_t row = 0;
      const std::byte* memory = addresses_[kIndex]->space == Space::LX
                                    ? sanitizer.lx()[core] + at
                                    : sanitizer.memory().host(sanitizer.address_of(at));
      std::memcpy(&row, memory, sizeof(row));
      if (row < -step.rows || row >= step.rows) continue;  // the step itself refuses it
      const int64_t chosen = (row < 0 ? row + step.rows : row) * step.row_stride;
      Bits value_data;
      uint64_t unused = 0;
      if (step.scatters) {
        read_stick(kValue, core, value_at, value_data, unused);
        if (!is_inside(kResult, core, out_at + chosen, true)) continue;
        const Where& out = where(kResult, core);
        note_written(out, kResult, core, out.base + out_at + chosen);
        // Two points may name one row: which of them stays is open, and no fault.
        out.shadow->state((out.base + out_at + chosen) / kStickBytes) = {
            value_data, run_, static_cast<uint16_t>(core), 0};
      } else {
        read_stick(kValue, core, value_at + chosen, value_data, unused);
        write_stick(kResult, core, out_at, value_data, result_tag);
      }
    }
    if (step.scatters) run_scatter_tags(step, core);
  }
}

// Where a scatter writes is not known beforehand: all that it may have written is alike.
void ShadowRun::run_scatter_tags(const GatherStep& step, int core) {
  constexpr int kResult = 2;
  std::vector<int64_t> points(step.extents.begin() + core * step.dims,
                              step.extents.begin() + (core + 1) * step.dims);
  std::vector<int64_t> strides = step.out.strides;
  points.push_back(step.rows);
  strides.push_back(step.row_stride);
  const auto [low, high] = hull(points.data(), strides, static_cast<int>(points.size()));
  const Where& place = where(kResult, core);
  for (int64_t at = low; at < high; at += kStickBytes) {
    if (place.base + at < place.low || place.base + at + kStickBytes > place.high) continue;
    note_written(place, kResult, core, place.base + at);
    place.shadow->set_tag(flow_, (place.base + at) / kStickBytes, launch_.number_, kOpaqueTag);
  }
}

void ShadowRun::run_topk(const TopkStep& step) {
  constexpr int kInput = 0, kOutput = 1;
  for (int core = 0; core < cores_; core++) {
    Counter point(step.extents.data() + core * step.dims, step.dims);
    for (int64_t p = 0; p < point.count(); p++, point.next()) {
      const int64_t group = step.stick_dim < 0 ? 0 : point[step.stick_dim];
      Register all;
      for (int64_t r = 0; r < step.count; r++) {
        const int64_t at = point.dot(step.input.strides) + r * step.input.strides.back();
        const Register value = load(step.input, kInput, core, at,
                                    sticks_left(step.input, core, group, step.lanes), step.lanes);
        all.tag = mix(all.tag, value.tag);
        all.data = all.data & value.data;
        if (all.operand < 0) {
          all.operand = value.operand;
          all.offset = value.offset;
        }
      }
      const uint64_t tag = mix(all.tag, 2 * step.largest + step.indices);
      for (int64_t i = 0; i < step.k; i++) {
        all.tag = mix(tag, i);
        store(step.output, kOutput, core,
              point.dot(step.output.strides) + i * step.output.strides.back(),
              sticks_left(step.output, core, group, step.lanes), step.lanes, all, nullptr);
      }
    }
  }
}

}  // namespace spyre::card
