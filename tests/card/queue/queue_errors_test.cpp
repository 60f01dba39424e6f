// Queue: errors of jobs, and the memory that jobs hold.
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "card.h"
#include "queue/queue.h"
#include "support/check.h"
#include "support/queue_jobs.h"

using namespace spyre::card;
using namespace std::chrono_literals;

// ---- Errors -----------------------------------------------------------------------------------

TEST(the_error_of_a_submitted_job_is_thrown_once_by_the_next_synchronising_call) {
  TestCard card;
  bool ran = false;
  card.queue.submit(failing("matmul_3", "stick out of range"));
  card.queue.submit(job([&] { ran = true; }));
  CHECK(becomes([&] { return card.queue.stream_idle(0); }));
  CHECK(ran);
  CHECK(card.queue.done(card.queue.record(0)));  // asking throws nothing
  CHECK(card.queue.drain());
  CHECK_THROWS(card.queue.synchronize(), JobError, "matmul_3: stick out of range");
  card.queue.synchronize();
  card.queue.run(job([&] { ran = false; }));
  CHECK(!ran);
}

TEST(every_synchronising_call_reports_errors) {
  TestCard card;
  Queue& q = card.queue;
  const auto fail = [&] {
    q.submit(failing("f", "x"));
    q.drain();
  };
  fail();
  CHECK_THROWS(q.synchronize(q.record(0)), JobError, "f: x");
  fail();
  CHECK_THROWS(q.synchronize_stream(7), JobError, "f: x");  // whatever the stream
  fail();
  CHECK_THROWS(q.run(job([] {})), JobError, "f: x");
  fail();
  TestCard other(1);
  CHECK_THROWS(other.queue.synchronize(q.record(0)), JobError, "f: x");
  other.queue.synchronize();
  q.synchronize();
}

TEST(the_first_of_several_errors_is_told_with_the_number_of_the_others) {
  TestCard card;
  Occupied occupied(card.queue);
  card.queue.submit(failing("first", "a"));
  card.queue.submit(failing("second", "b"));
  occupied.gate.open();
  CHECK_THROWS(card.queue.synchronize(), JobError, "first: a (and 1 job failed after it)");
  for (int i = 0; i < 4; i++) card.queue.submit(failing("again", "c"));
  CHECK_THROWS(card.queue.synchronize(), JobError, "again: c (and 3 jobs failed after it)");
  card.queue.synchronize();
}

TEST(anything_can_be_thrown) {
  TestCard card;
  card.queue.submit(job([] { throw 42; }, 0, "odd"));
  CHECK_THROWS(card.queue.synchronize(), JobError, "odd: unknown exception");
  card.queue.callback(0, [] { throw std::logic_error("oops"); });
  CHECK_THROWS(card.queue.synchronize(), JobError, "host callback: oops");
  CHECK_THROWS(card.queue.run(job([] { throw 42; })), int, "");
}

TEST(the_error_of_a_run_job_is_thrown_as_it_is) {
  TestCard card;
  CHECK_THROWS(card.queue.run(job([] { throw std::domain_error("inline"); })), std::domain_error,
               "inline");
  Occupied occupied(card.queue);
  std::thread opener([&] {
    std::this_thread::sleep_for(5ms);
    occupied.gate.open();
  });
  CHECK_THROWS(card.queue.run(job([] { throw std::domain_error("queued"); })), std::domain_error,
               "queued");
  opener.join();
  card.queue.synchronize();  // nothing is left pending
}

TEST(run_reports_an_earlier_error_instead_of_running) {
  TestCard card;
  bool ran = false;
  card.queue.submit(failing("early", "e"));
  card.queue.drain();
  Job idle = timed(2);
  idle.run = [&] { ran = true; };
  CHECK_THROWS(card.queue.run(idle), JobError, "early: e");
  CHECK(!ran);

  Occupied occupied(card.queue);
  card.queue.submit(failing("early", "again"));
  std::thread opener([&] {
    std::this_thread::sleep_for(5ms);
    occupied.gate.open();
  });
  CHECK_THROWS(card.queue.run(idle), JobError, "early: again");
  CHECK(!ran);
  CHECK_EQ(card.queue.stream_time_us(0), 4.0);  // time does not depend on who was faster
  opener.join();
  card.queue.run(idle);
  CHECK(ran);
}

// ---- Memory -----------------------------------------------------------------------------------

TEST(blocks_that_a_job_uses_are_held_until_it_is_done) {
  TestCard card;
  Occupied occupied(card.queue);
  Block* block = card.memory.allocate(MiB);
  Job use = job([] {});
  use.uses = {block, block, nullptr};
  card.queue.submit(use);
  card.memory.free(block);
  CHECK_EQ(card.memory.free_bytes(), 0);
  CHECK_THROWS(card.memory.allocate(1), OutOfMemory, "held by queued work");
  occupied.gate.open();
  card.queue.synchronize();
  CHECK_EQ(card.memory.free_bytes(), MiB);
}

TEST(blocks_of_failed_skipped_and_run_jobs_are_released_too) {
  TestCard card;
  for (int kind = 0; kind < 3; kind++) {
    Block* block = card.memory.allocate(MiB);
    Job use = failing("f", "x");
    use.uses = {block};
    if (kind == 2) card.queue.submit(failing("earlier", "y"));
    try {
      if (kind == 0) card.queue.submit(use);
      if (kind > 0) card.queue.run(use);
    } catch (const std::runtime_error&) {
    }
    card.memory.free(block);
    card.queue.drain();
    CHECK_EQ(card.memory.free_bytes(), MiB);
    if (kind == 0) CHECK_THROWS(card.queue.synchronize(), JobError, "f: x");
  }
}

TEST(what_a_job_has_captured_is_gone_before_it_counts_as_done) {
  TestCard card;
  std::vector<uint64_t> done_when_destroyed;
  const auto captured = [&] {
    return std::shared_ptr<void>(
        nullptr, [&](void*) { done_when_destroyed.push_back(card.queue.jobs_done()); });
  };
  card.queue.submit(job([held = captured()] {}));
  card.queue.synchronize();
  card.queue.run(job([held = captured()] {}));
  CHECK_EQ(done_when_destroyed, (std::vector<uint64_t>{0, 1}));
}

TEST(a_full_card_waits_for_queued_work_that_holds_freed_memory) {
  Card card(0, Hardware{}, MiB);
  Block* block = card.memory.allocate(MiB);
  Job use = job([] { std::this_thread::sleep_for(5ms); });
  use.uses = {block};
  card.queue.submit(use);
  card.memory.free(block);
  Block* next = card.memory.allocate(MiB);
  CHECK(next != nullptr);
  CHECK_EQ(card.queue.jobs_done(), 1);
  card.memory.free(next);
  // From inside a job nobody can wait for the card: an error, not a standstill.
  Block* held = card.memory.allocate(MiB);
  Job greedy = job([&] {
    card.memory.free(held);
    CHECK_THROWS(card.memory.allocate(MiB), OutOfMemory, "held by queued work");
  });
  greedy.uses = {held};
  card.queue.run(greedy);
  CHECK_EQ(card.memory.free_bytes(), MiB);
}
