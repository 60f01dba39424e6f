// Queue: order, the modelled clocks, marks, waits between cards, errors, and who executes.
#include "queue.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <latch>
#include <limits>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "card.h"
#include "check.h"

using namespace spyre::card;
using namespace std::chrono_literals;

namespace {

constexpr size_t MiB = 1024 * 1024;

struct TestCard {
  explicit TestCard(int index = 0) : memory(index, MiB), queue(index, memory) {}
  Memory memory;
  Queue queue;
};

Job job(std::function<void()> run, int stream = 0, std::string name = "job") {
  return {.name = std::move(name), .stream = stream, .run = std::move(run), .uses = {}};
}

Job timed(double us, int stream = 0, Engine engine = Engine::COMPUTE) {
  return {
      .name = "timed", .stream = stream, .engine = engine, .device_us = us, .run = {}, .uses = {}};
}

Job failing(const std::string& name, const std::string& what) {
  return job([what] { throw std::runtime_error(what); }, 0, name);
}

// A job that stays at the head of the queue until it is let go.
class Gate {
 public:
  Job job(int stream = 0) {
    return ::job(
        [this] {
          entered_.count_down();
          open_.acquire();
        },
        stream, "gate");
  }
  void wait_until_entered() { entered_.wait(); }
  void open() { open_.release(); }

 private:
  std::latch entered_{1};
  std::binary_semaphore open_{0};
};

// Occupies the executor of a card, so that everything submitted later stays queued.
struct Occupied {
  explicit Occupied(Queue& queue, int stream = 0) {
    queue.submit(gate.job(stream));
    gate.wait_until_entered();
  }
  Gate gate;
};

template <typename Condition>
bool becomes(Condition&& condition) {
  for (int i = 0; i < 10000 && !condition(); i++) std::this_thread::sleep_for(1ms);
  return condition();
}

int threads_of_this_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    count++;
  }
  return count;
}

}  // namespace

// ---- Order ------------------------------------------------------------------------------------

TEST(jobs_run_in_the_order_of_submission_whatever_their_stream) {
  TestCard card;
  std::vector<int> order;  // jobs run one at a time: no lock
  for (int i = 0; i < 500; i++) {
    CHECK_EQ(card.queue.submit(job([&order, i] { order.push_back(i); }, i * 7 % 65)), i + 1);
  }
  card.queue.synchronize();
  CHECK_EQ(order.size(), 500);
  for (int i = 0; i < 500; i++) CHECK_EQ(order[i], i);
  CHECK_EQ(card.queue.jobs_done(), 500);
}

TEST(submit_does_not_wait) {
  TestCard card;
  Occupied occupied(card.queue);
  std::atomic<bool> ran{false};
  card.queue.submit(job([&] { ran = true; }));
  CHECK(!ran);
  CHECK_EQ(card.queue.jobs_done(), 0);
  CHECK(!card.queue.stream_idle(0));
  CHECK(card.queue.stream_idle(1));
  occupied.gate.open();
  card.queue.synchronize();
  CHECK(ran);
  CHECK(card.queue.stream_idle(0));
}

TEST(submitted_work_is_done_without_anybody_waiting) {
  TestCard card;
  for (int i = 1; i <= 5; i++) {
    std::this_thread::sleep_for(2ms);  // the executor sleeps again
    card.queue.submit(job([] {}));
    CHECK(becomes([&] { return card.queue.jobs_done() == static_cast<uint64_t>(i); }));
  }
}

TEST(destruction_finishes_pending_work) {
  std::atomic<int> ran{0};
  {
    TestCard card;
    for (int i = 0; i < 100; i++) {
      card.queue.submit(job([&] {
        std::this_thread::sleep_for(50us);
        ran++;
        if (ran == 100) card.queue.submit(job([&] { ran++; }));
      }));
    }
  }
  CHECK_EQ(ran.load(), 101);
}

TEST(callbacks_run_in_their_place_and_take_no_time) {
  TestCard card;
  Occupied occupied(card.queue);
  std::vector<int> order;
  card.queue.submit(job([&] { order.push_back(1); }, 3));
  card.queue.callback(3, [&] { order.push_back(2); });
  card.queue.submit(job([&] { order.push_back(3); }, 3));
  CHECK(!card.queue.stream_idle(3));
  occupied.gate.open();
  card.queue.synchronize_stream(3);
  CHECK_EQ(order, (std::vector<int>{1, 2, 3}));
  CHECK_EQ(card.queue.stream_time_us(3), 0.0);
}

TEST(a_job_may_submit_jobs) {
  TestCard card;
  std::vector<int> order;
  card.queue.submit(job([&] {
    order.push_back(1);
    card.queue.submit(job([&] { order.push_back(2); }));
    card.queue.callback(0, [&] { order.push_back(3); });
  }));
  card.queue.synchronize();
  card.queue.synchronize();  // for what was submitted meanwhile
  CHECK_EQ(order, (std::vector<int>{1, 2, 3}));
}

// ---- Who executes -----------------------------------------------------------------------------

TEST(run_on_an_idle_card_stays_on_the_callers_thread_and_starts_no_other) {
  const int before = threads_of_this_process();
  TestCard card;
  const auto caller = std::this_thread::get_id();
  int ran = 0;
  for (int i = 0; i < 10; i++) {
    card.queue.run(job([&] { ran += std::this_thread::get_id() == caller; }));
  }
  CHECK_EQ(ran, 10);
  CHECK_EQ(card.queue.jobs_done(), 10);
  CHECK_EQ(threads_of_this_process(), before);
}

TEST(run_waits_for_what_is_queued_before) {
  TestCard card;
  Occupied occupied(card.queue);
  std::vector<int> order;
  card.queue.submit(job([&] { order.push_back(1); }));
  std::thread opener([&] {
    std::this_thread::sleep_for(5ms);
    occupied.gate.open();
  });
  card.queue.run(job([&] { order.push_back(2); }));
  CHECK_EQ(order, (std::vector<int>{1, 2}));
  opener.join();
}

TEST(work_submitted_during_an_inline_run_is_done_after_it) {
  TestCard card;
  Gate gate;
  std::thread runner([&] { card.queue.run(gate.job()); });
  gate.wait_until_entered();
  std::atomic<bool> ran{false};
  card.queue.submit(job([&] { ran = true; }));
  std::this_thread::sleep_for(5ms);
  CHECK(!ran);
  gate.open();
  CHECK(becomes([&] { return ran.load(); }));
  runner.join();
}

TEST(callers_of_run_hand_over_to_each_other_without_an_executor) {
  const int before = threads_of_this_process();
  TestCard card;
  for (int round = 0; round < 200; round++) {
    std::atomic<int> inside{0};
    int total = 0;  // only one job at a time
    const auto work = [&] {
      for (int i = 0; i < 20; i++) {
        card.queue.run(job([&] {
          CHECK_EQ(inside.fetch_add(1), 0);
          total++;
          inside--;
        }));
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(total, 80);
  }
  CHECK(becomes([&] { return threads_of_this_process() == before; }));
}

// A wait of another card sleeps on the same list as callers of run(), but takes over nothing.
TEST(a_waiting_card_does_not_stall_callers_of_run) {
  TestCard a(0), b(1);
  for (int round = 0; round < 200; round++) {
    Gate gate;
    std::thread first([&] { a.queue.run(gate.job()); });
    gate.wait_until_entered();
    std::thread second([&] { a.queue.run(job([] {}, 1)); });
    CHECK(becomes([&] { return !a.queue.stream_idle(1); }));
    b.queue.wait(0, a.queue.record(1));
    std::thread third([&] { a.queue.run(job([] {}, 2)); });
    gate.open();
    first.join();
    second.join();
    third.join();
    b.queue.synchronize();
  }
}

TEST(a_job_that_waits_for_its_own_card_is_refused) {
  TestCard card;
  card.queue.submit(job([&] { card.queue.synchronize(); }, 0, "selfish"));
  CHECK_THROWS(card.queue.synchronize(), JobError,
               "selfish: synchronize: a job or callback of Spyre card 0");
  CHECK_THROWS(card.queue.run(job([&] { card.queue.run(job([] {}, 0, "inner")); })),
               std::logic_error, "inner: a job or callback");
  card.queue.run(job([&] { CHECK(!card.queue.drain()); }));
  CHECK(card.queue.drain());
}

TEST(a_job_may_wait_for_another_card) {
  TestCard a(0), b(1);
  int value = 0;
  a.queue.submit(job([&] {
    b.queue.submit(job([&] { value = 1; }));
    b.queue.run(job([&] { value += 1; }));
    // Inside the other card's job, the outer card is still out of reach.
    b.queue.run(job([&] { CHECK_THROWS(a.queue.synchronize(), std::logic_error, "card 0"); }));
  }));
  a.queue.synchronize();
  CHECK_EQ(value, 2);
}

TEST(blocking_mode_runs_at_once_and_throws_at_once) {
  TestCard card;
  card.queue.set_blocking(true);
  bool ran = false;
  CHECK_EQ(card.queue.submit(job([&] { ran = true; })), 1);
  CHECK(ran);
  CHECK_THROWS(card.queue.submit(failing("bad", "no")), std::runtime_error, "no");
  card.queue.callback(0, [&] { card.queue.submit(job([&] { ran = false; })); });
  card.queue.synchronize();
  CHECK(!ran);
  card.queue.set_blocking(false);
  Occupied occupied(card.queue);
  ran = false;
  CHECK_EQ(card.queue.submit(job([&] { ran = true; })), 6);
  CHECK(!ran);
  occupied.gate.open();
}

// ---- Clocks -----------------------------------------------------------------------------------

TEST(clocks_follow_a_worked_example) {
  TestCard card;
  Queue& q = card.queue;
  Occupied occupied(q, 64);                     // times are known while nothing has run yet
  q.submit(timed(10, 0));                       // compute: 0..10
  q.submit(timed(5, 1));                        // waits for the compute engine: 10..15
  q.submit(timed(4, 2, Engine::HOST_TO_CARD));  // its own engine: 0..4
  q.submit(timed(3, 2));                        // after its stream and the engine: 15..18
  q.submit(timed(2, 2, Engine::CARD_TO_HOST));  // 18..20
  q.submit(timed(1, 3, Engine::HOST_TO_CARD));  // the engine is free since 4: 4..5
  q.submit(timed(7, 3, Engine::NONE));          // only the stream: 5..12
  q.submit(timed(7, 4, Engine::NONE));          // no engine in common: 0..7
  CHECK_EQ(q.stream_time_us(0), 10.0);
  CHECK_EQ(q.stream_time_us(1), 15.0);
  CHECK_EQ(q.stream_time_us(2), 20.0);
  CHECK_EQ(q.stream_time_us(3), 12.0);
  CHECK_EQ(q.stream_time_us(4), 7.0);
  CHECK_EQ(q.stream_time_us(5), 0.0);
  CHECK_EQ(q.busy_us(), 39.0);

  const Mark mark = q.record(2);
  CHECK_EQ(mark.device_us, 20.0);
  q.wait(0, mark);  // stream 0 is at 10
  CHECK_EQ(q.stream_time_us(0), 20.0);
  q.wait(2, q.record(1));  // an earlier time changes nothing
  CHECK_EQ(q.stream_time_us(2), 20.0);
  q.submit(timed(1, 0));  // the compute engine is free since 18: 20..21
  CHECK_EQ(q.stream_time_us(0), 21.0);
  occupied.gate.open();
}

TEST(clocks_do_not_depend_on_the_host) {
  const auto play = [](int pause) {
    TestCard card;
    std::mt19937 random(5);
    for (int i = 0; i < 300; i++) {
      const auto engine = static_cast<Engine>(random() % 4);
      const int stream = random() % 6;
      Job next = timed(random() % 1000 / 8.0, stream, engine);
      next.run = [pause, i] {
        if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      };
      if (random() % 2) {
        card.queue.submit(std::move(next));
      } else {
        card.queue.run(std::move(next));
      }
      const int from = random() % 6, to = random() % 6;
      if (random() % 5 == 0) card.queue.wait(to, card.queue.record(from));
    }
    std::vector<double> times;
    for (int s = 0; s < 6; s++) times.push_back(card.queue.stream_time_us(s));
    times.push_back(card.queue.busy_us());
    return times;
  };
  CHECK_EQ(play(0), play(300));
  CHECK(play(0).back() > 0);
}

TEST(impossible_times_are_refused) {
  TestCard card;
  for (double us : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS(card.queue.submit(timed(us)), std::invalid_argument, "timed: a job takes 0 us");
    CHECK_THROWS(card.queue.run(timed(us)), std::invalid_argument, "timed: a job takes 0 us");
  }
  CHECK_EQ(card.queue.busy_us(), 0.0);
}

// ---- Streams and marks ------------------------------------------------------------------------

TEST(streams_are_0_to_64) {
  TestCard card;
  Queue& q = card.queue;
  for (int stream : {-1, 65, 1000}) {
    const std::string text =
        "stream " + std::to_string(stream) + " does not exist: a card has streams 0..64";
    CHECK_THROWS(q.submit(job([] {}, stream)), std::out_of_range, text);
    CHECK_THROWS(q.run(job([] {}, stream)), std::out_of_range, text);
    CHECK_THROWS(q.record(stream), std::out_of_range, text);
    CHECK_THROWS(q.wait(stream, Mark{}), std::out_of_range, text);
    CHECK_THROWS(q.callback(stream, [] {}), std::out_of_range, text);
    CHECK_THROWS(q.synchronize_stream(stream), std::out_of_range, text);
    CHECK_THROWS(q.stream_idle(stream), std::out_of_range, text);
    CHECK_THROWS(q.stream_time_us(stream), std::out_of_range, text);
  }
  q.run(job([] {}, 64));
  CHECK_EQ(q.jobs_done(), 1);
}

TEST(a_mark_is_done_when_the_work_before_it_is) {
  TestCard card;
  const Mark before = card.queue.record(0);
  CHECK(card.queue.done(before));
  Occupied occupied(card.queue);
  const Mark mark = card.queue.record(0);
  const Mark other_stream = card.queue.record(1);
  CHECK_EQ(mark.card, 0);
  CHECK_EQ(mark.sequence, 1);
  CHECK(!card.queue.done(mark));
  CHECK(card.queue.done(other_stream));
  card.queue.synchronize(other_stream);  // returns while the gate is closed
  Gate second;
  card.queue.submit(second.job());
  occupied.gate.open();
  card.queue.synchronize(mark);  // returns while the second gate is closed
  CHECK(card.queue.done(mark));
  CHECK(!card.queue.stream_idle(0));
  second.open();
}

TEST(a_mark_that_was_never_recorded_is_done) {
  TestCard card;
  Occupied occupied(card.queue);
  CHECK(card.queue.done(Mark{}));
  card.queue.synchronize(Mark{});
  card.queue.wait(1, Mark{});
  CHECK(card.queue.stream_idle(1));
  CHECK_EQ(card.queue.stream_time_us(1), 0.0);
  occupied.gate.open();
}

TEST(a_mark_made_by_hand_works_on_its_own_card_only) {
  TestCard card;
  Occupied occupied(card.queue);
  Mark mark{.card = 0, .stream = 0, .sequence = 1, .device_us = 0, .queue = nullptr};
  CHECK(!card.queue.done(mark));
  mark.card = 1;
  CHECK_THROWS(card.queue.done(mark), std::invalid_argument, "mark of card 1");
  CHECK_THROWS(card.queue.wait(0, mark), std::invalid_argument, "mark of card 1");
  occupied.gate.open();
}

TEST(a_stream_waits_for_a_mark_of_another_card) {
  TestCard a(0), b(1);
  Occupied occupied(a.queue, 5);
  a.queue.submit(timed(30, 5));
  std::atomic<bool> ran{false};
  b.queue.wait(2, a.queue.record(5));
  CHECK_EQ(b.queue.stream_time_us(2), 30.0);
  b.queue.submit(job([&] { ran = true; }, 2));
  std::this_thread::sleep_for(10ms);
  CHECK(!ran);
  CHECK(!b.queue.stream_idle(2));
  occupied.gate.open();
  b.queue.synchronize();
  CHECK(ran);
  CHECK(a.queue.jobs_done() >= 2);
}

TEST(a_done_mark_of_another_card_costs_no_job) {
  TestCard a(0), b(1);
  a.queue.run(timed(8));
  b.queue.wait(0, a.queue.record(0));
  CHECK_EQ(b.queue.jobs_done(), 0);
  CHECK(b.queue.stream_idle(0));
  CHECK_EQ(b.queue.stream_time_us(0), 8.0);
}

TEST(a_mark_of_another_card_can_be_asked_and_waited_for_anywhere) {
  TestCard a(0), b(1);
  Occupied occupied(a.queue);
  const Mark mark = a.queue.record(0);
  CHECK(!b.queue.done(mark));
  occupied.gate.open();
  b.queue.synchronize(mark);
  CHECK(b.queue.done(mark));
}

TEST(a_mark_outlives_its_card) {
  TestCard b(1);
  Mark mark;
  {
    TestCard a(0);
    a.queue.submit(job([] {}));
    mark = a.queue.record(0);
  }
  CHECK(b.queue.done(mark));
  b.queue.wait(0, mark);
  b.queue.synchronize(mark);
}

TEST(cards_that_wait_for_each_other_in_turn_make_progress) {
  TestCard a(0), b(1);
  std::atomic<int> turn{0};
  for (int i = 0; i < 300; i++) {
    a.queue.submit(job([&turn, i] { CHECK_EQ(turn.exchange(2 * i + 1), 2 * i); }));
    b.queue.wait(0, a.queue.record(0));
    b.queue.submit(job([&turn, i] { CHECK_EQ(turn.exchange(2 * i + 2), 2 * i + 1); }));
    a.queue.wait(0, b.queue.record(0));
  }
  a.queue.synchronize();
  b.queue.synchronize();
  CHECK_EQ(turn.load(), 600);
}

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

// ---- Many threads -----------------------------------------------------------------------------

TEST(many_threads_submit_run_and_synchronise_at_once) {
  constexpr int kSubmitters = 4, kSynchronisers = 3, kEach = 3000, kStreams = 8;
  TestCard card;
  Block* block = card.memory.allocate(4096);
  std::atomic<int> inside{0}, ran{0}, synchronised{0};
  std::atomic<bool> stop{false};
  std::latch start(kSubmitters + kSynchronisers);  // on a busy host some would come too late
  int unguarded = 0;  // one job at a time: also checked by the thread sanitizer

  const auto submitter = [&](int id) {
    std::mt19937 random(id);
    std::vector<std::atomic<int>> last(kStreams);
    for (auto& value : last) value = -1;
    start.arrive_and_wait();
    for (int i = 0; i < kEach; i++) {
      const int stream = random() % kStreams;
      Job next = job(
          [&, i, stream] {
            CHECK_EQ(inside.fetch_add(1), 0);
            CHECK(last[stream].exchange(i) < i);  // a thread's jobs stay in order
            unguarded++;
            ran++;
            inside--;
          },
          stream);
      next.uses = {block};
      if (random() % 8 == 0) {
        card.queue.run(std::move(next));
        CHECK_EQ(last[stream].load(), i);
      } else {
        card.queue.submit(std::move(next));
      }
    }
    card.queue.synchronize();  // `last` must live until then
  };
  const auto synchroniser = [&](int id) {
    std::mt19937 random(100 + id);
    start.arrive_and_wait();
    do {
      const int stream = random() % kStreams;
      const Mark mark = card.queue.record(stream);
      switch (random() % 4) {
        case 0:
          card.queue.synchronize(mark);
          break;
        case 1:
          card.queue.synchronize_stream(stream);
          break;
        case 2:
          card.queue.synchronize();
          break;
        case 3:
          card.queue.callback(stream, [&] { synchronised++; });
          continue;
      }
      CHECK(card.queue.done(mark));
      synchronised++;
      std::this_thread::sleep_for(20us);
    } while (!stop);
  };
  std::vector<std::thread> submitters, synchronisers;
  for (int i = 0; i < kSubmitters; i++) submitters.emplace_back(submitter, i);
  for (int i = 0; i < kSynchronisers; i++) synchronisers.emplace_back(synchroniser, i);
  for (std::thread& thread : submitters) thread.join();
  stop = true;
  for (std::thread& thread : synchronisers) thread.join();
  card.queue.synchronize();
  CHECK_EQ(ran.load(), kSubmitters * kEach);
  CHECK_EQ(unguarded, kSubmitters * kEach);
  CHECK(synchronised > 0);
  for (int stream = 0; stream < kStreams; stream++) CHECK(card.queue.stream_idle(stream));
  card.memory.free(block);
  CHECK_EQ(card.memory.free_bytes(), MiB);
}

TEST(every_error_is_told_or_counted_under_threads) {
  TestCard card;
  std::atomic<int> told{0};
  constexpr int kThreads = 4, kEach = 500;
  const auto note = [&](auto&& call) {
    try {
      call();
    } catch (const JobError& error) {
      int others = 0;
      std::sscanf(error.what(), "f: x (and %d", &others);
      told += 1 + others;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; i++) {
        card.queue.submit(failing("f", "x"));
        if (i % 3 == t % 3) note([&] { card.queue.synchronize(); });
        bool ran = false, threw = true;
        note([&] {
          if (i % 5 == 0) card.queue.run(job([&] { ran = true; }));
          threw = false;
        });
        if (i % 5 == 0) CHECK(ran != threw);  // either it ran, or it told of an error
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  note([&] { card.queue.synchronize(); });
  CHECK_EQ(told.load(), kThreads * kEach);
}

TEST(a_small_job_runs_at_once_on_an_idle_card_and_in_its_turn_on_a_busy_one) {
  TestCard card;
  auto small = [](std::function<void()> run) {
    Job made = job(std::move(run));
    made.small = true;
    return made;
  };
  std::thread::id where;
  card.queue.submit(small([&] { where = std::this_thread::get_id(); }));
  CHECK(where == std::this_thread::get_id());

  std::atomic<bool> ran{false};
  {
    Occupied occupied(card.queue);
    card.queue.submit(small([&] { ran = true; }));
    CHECK(!ran);
    occupied.gate.open();
    card.queue.synchronize();
    CHECK(ran);
  }

  // Its error is told by the next synchronisation, as that of any other submitted job.
  card.queue.submit(small([] { throw std::runtime_error("broken"); }));
  CHECK_THROWS(card.queue.synchronize(), JobError, "job: broken");
  card.queue.synchronize();
}

TEST(the_process_may_exit_while_the_executor_sleeps_or_works) {
  for (const bool busy : {false, true}) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      auto* card = new Card(0, Hardware{}, MiB);  // never destroyed
      std::latch ran(1);
      card->queue.submit(job([&] { ran.count_down(); }));
      ran.wait();
      if (busy) {
        card->queue.submit(job([] { std::this_thread::sleep_for(10s); }));
      }
      std::this_thread::sleep_for(5ms);
      std::exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 7);
  }
}
