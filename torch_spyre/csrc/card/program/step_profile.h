// How long the steps of programs take on this host, when that is asked for.
//
// Between start and stop every step that runs adds its time to its row; otherwise a program asks
// once a launch whether that is wanted. Example:
//
//   start_step_profile();
//   ... launches ...
//   for (const StepTimes& row : stop_step_profile()) ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spyre::card {

struct ParsedProgram;

struct StepTimes {
  std::string name;
  int64_t kind = 0;
  int64_t count = 0;     // how often it ran
  double fastest = 0;    // seconds on the host, of its fastest run: what it costs undisturbed
  double device_us = 0;  // modelled, of one run
};

// Counts from zero again if it has been started before.
void start_step_profile();
// The steps that ran, program by program in the order of their first launch. Empty if not started.
std::vector<StepTimes> stop_step_profile();

// For the one that runs programs.
bool is_profiling_steps();
void note_step(const ParsedProgram& program, size_t step, double seconds);

}  // namespace spyre::card
