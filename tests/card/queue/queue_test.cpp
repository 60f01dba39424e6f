// Queue: the order of jobs, and who executes them.
#include "queue/queue.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/check.h"
#include "support/queue_jobs.h"

using namespace spyre::card;
using namespace std::chrono_literals;

namespace {

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
