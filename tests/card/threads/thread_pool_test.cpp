// ThreadPool: every slice once, errors, nesting, concurrent launches, resizing.
#include "threads/thread_pool.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "support/check.h"

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

// A thread leaves /proc a moment after it was joined.
bool thread_count_becomes(int count) {
  for (int i = 0; i < 1000 && threads_of_this_process() != count; i++) {
    std::this_thread::sleep_for(1ms);
  }
  return threads_of_this_process() == count;
}

void check_each_slice_once(ThreadPool& pool, int slices) {
  std::vector<std::atomic<int>> runs(slices);
  pool.run(slices, [&](int i) { runs.at(i)++; });
  for (const auto& count : runs) CHECK_EQ(count.load(), 1);
}

// Blocks as long as no other thread runs a slice beside this one.
bool two_slices_meet(ThreadPool& pool) {
  std::counting_semaphore<2> arrived[2] = {std::counting_semaphore<2>(0),
                                           std::counting_semaphore<2>(0)};
  std::atomic<int> met{0};
  pool.run(2, [&](int i) {
    arrived[i].release();
    met += arrived[1 - i].try_acquire_for(10s);
  });
  return met == 2;
}

}  // namespace

TEST(every_slice_runs_exactly_once) {
  for (int threads = 1; threads <= 4; threads++) {
    ThreadPool pool(threads);
    CHECK_EQ(pool.threads(), threads);
    for (int slices = 0; slices <= 70; slices++) check_each_slice_once(pool, slices);
  }
}

TEST(a_worker_helps_the_caller) {
  ThreadPool pool(2);
  CHECK(two_slices_meet(pool));
  std::this_thread::sleep_for(20ms);  // the worker sleeps by now
  CHECK(two_slices_meet(pool));
}

TEST(the_caller_sleeps_until_a_slow_worker_is_done) {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  for (int round = 0; round < 5; round++) {
    std::binary_semaphore helped(0);
    std::atomic<int> done{0};
    pool.run(2, [&](int) {
      if (std::this_thread::get_id() == caller) {
        CHECK(helped.try_acquire_for(10s));  // else the caller might claim both
      } else {
        helped.release();
        std::this_thread::sleep_for(10ms);  // far longer than anybody spins
      }
      done++;
    });
    CHECK_EQ(done.load(), 2);
  }
}

TEST(a_thread_that_waits_can_help_instead_of_a_worker) {
  ThreadPool pool(2);
  std::atomic<bool> done{false}, helps{false};
  std::atomic<int> slices_of_helper{0};
  std::thread::id helper_id;
  std::thread helper([&] {
    helper_id = std::this_thread::get_id();
    helps = true;
    while (!done) pool.help([&] { return done.load(); });
  });
  while (!helps) std::this_thread::yield();
  for (int round = 0; round < 2000 && slices_of_helper < 100; round++) {
    std::vector<std::atomic<int>> runs(64);
    pool.run(64, [&](int i) {
      runs[i]++;
      if (std::this_thread::get_id() == helper_id) slices_of_helper++;
      std::this_thread::sleep_for(1us);
    });
    for (const auto& count : runs) CHECK_EQ(count.load(), 1);
  }
  done = true;
  helper.join();
  CHECK(slices_of_helper >= 100);
}

TEST(a_helper_leaves_when_there_is_nothing_to_do) {
  ThreadPool pool(2);
  pool.help([] { return false; });
  pool.help([] { return true; });
  ThreadPool alone(1);
  alone.help([] { return false; });
}

TEST(no_more_threads_help_than_are_wanted) {
  ThreadPool pool(2);
  std::counting_semaphore<3> inside(0);
  std::atomic<bool> done{false};
  std::atomic<int> asked{0};
  const auto ask = [&] {
    if (asked++ == 0) inside.release();
    return done.load();
  };
  std::thread first([&] {
    while (!done) pool.help(ask);
  });
  CHECK(inside.try_acquire_for(10s));
  bool met = false;
  for (int i = 0; i < 100000 && !met; i++) {  // while the first one is there
    std::atomic<int> questions{0};
    pool.help([&] {
      questions++;
      return false;
    });
    met = questions == 0;
  }
  CHECK(met);
  done = true;
  first.join();
}

TEST(a_launch_that_expects_help_does_not_wait_for_it) {
  ThreadPool pool(2);
  CHECK(two_slices_meet(pool));       // the worker is there
  std::this_thread::sleep_for(20ms);  // and asleep
  std::thread caller([&] {
    ThreadPool::expect_help();
    const auto id = std::this_thread::get_id();
    std::atomic<bool> helped{false};
    for (int round = 0; round < 100 && !helped; round++) {
      pool.run(64, [&](int) {
        if (std::this_thread::get_id() != id) helped = true;
        std::this_thread::sleep_for(100us);
      });
    }
    CHECK(helped);
    CHECK(two_slices_meet(pool));  // a launch of few slices wakes it at once
  });
  caller.join();
}

TEST(one_thread_means_the_caller_alone_in_order) {
  ThreadPool pool(1);
  std::vector<int> order;
  const auto caller = std::this_thread::get_id();
  pool.run(5, [&](int i) {
    CHECK(std::this_thread::get_id() == caller);
    order.push_back(i);
  });
  CHECK_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(workers_start_on_first_need_and_no_more_than_are_useful) {
  const int before = threads_of_this_process();
  {
    ThreadPool pool(4);
    pool.run(1, [](int) {});
    CHECK_EQ(threads_of_this_process(), before);
    pool.run(2, [](int) {});
    CHECK_EQ(threads_of_this_process(), before + 1);
    pool.run(100, [](int) {});
    CHECK_EQ(threads_of_this_process(), before + 3);
  }
  CHECK(thread_count_becomes(before));
}

TEST(writes_of_slices_are_seen_by_the_caller) {
  ThreadPool pool(3);
  std::vector<int> values(64);
  for (int round = 0; round < 20000; round++) {
    pool.run(8, [&](int i) {
      for (int k = 0; k < 8; k++) values[i * 8 + k] = round + i;
    });
    for (int i = 0; i < 64; i++) {
      if (values[i] != round + i / 8) return CHECK_EQ(values[i], round + i / 8);
    }
  }
}

// Workers that are late for one launch arrive in the middle of another, larger or smaller one.
TEST(late_workers_do_not_run_slices_of_another_launch) {
  ThreadPool pool(4);
  for (int round = 0; round < 5000; round++) {
    const int slices = 2 + round * 7 % 31;
    std::atomic<int> runs{0};
    pool.run(slices, [&](int i) {
      CHECK(i >= 0 && i < slices);
      runs++;
    });
    CHECK_EQ(runs.load(), slices);
  }
}

TEST(an_exception_is_rethrown_when_no_slice_runs_any_more) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int> begun{0}, running{0};
    const auto slice = [&](int i) {
      begun++;
      running++;
      std::this_thread::sleep_for(100us);
      running--;
      if (i == 3) throw std::out_of_range("slice 3");
    };
    CHECK_THROWS(pool.run(1000, slice), std::out_of_range, "slice 3");
    CHECK_EQ(running.load(), 0);
    CHECK(begun >= 4 && begun < 1000);  // the rest was left out
    check_each_slice_once(pool, 32);
  }
}

TEST(the_first_of_many_exceptions_wins) {
  ThreadPool pool(4);
  for (int round = 0; round < 500; round++) {
    CHECK_THROWS(pool.run(8, [](int i) { throw std::runtime_error("s" + std::to_string(i)); }),
                 std::runtime_error, "s");
    check_each_slice_once(pool, 8);
  }
}

TEST(anything_can_be_thrown) {
  ThreadPool pool(2);
  CHECK_THROWS(pool.run(4, [](int) { throw 42; }), int, "");
  CHECK_THROWS(pool.run(1, [](int) { throw 42; }), int, "");
  check_each_slice_once(pool, 4);
}

TEST(slices_may_launch_slices) {
  ThreadPool pool(3);
  std::atomic<int> leaves{0};
  pool.run(8, [&](int) { pool.run(8, [&](int) { pool.run(4, [&](int) { leaves++; }); }); });
  CHECK_EQ(leaves.load(), 8 * 8 * 4);
  CHECK_THROWS(pool.run(4, [&](int) { pool.run(4, [](int) { throw std::logic_error("deep"); }); }),
               std::logic_error, "deep");
  check_each_slice_once(pool, 8);
}

TEST(several_threads_may_launch_at_once) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; c++) {
    callers.emplace_back([&pool, c] {
      for (int round = 0; round < 2000; round++) {
        std::atomic<int> sum{0};
        bool thrown = false;
        try {
          pool.run(10, [&](int i) {
            sum += i + c;
            if (c == 5 && i == 9) throw std::runtime_error("last");
          });
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        CHECK_EQ(thrown, c == 5);
        if (c != 5) CHECK_EQ(sum.load(), 45 + 10 * c);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(resizing_takes_effect_with_the_next_launch) {
  const int before = threads_of_this_process();
  ThreadPool pool(1);
  for (int threads : {4, 2, 3, 1, 2}) {
    pool.resize(threads);
    CHECK_EQ(pool.threads(), threads);
    check_each_slice_once(pool, 50);
    CHECK(thread_count_becomes(before + threads - 1));
  }
  CHECK(two_slices_meet(pool));
}

TEST(resizing_from_anywhere_is_safe) {
  ThreadPool pool(2);
  pool.run(16, [&](int i) { pool.resize(1 + i % 4); });
  std::atomic<bool> stop{false};
  std::thread resizer([&] {
    for (int i = 0; !stop; i++) pool.resize(1 + i % 4);
  });
  for (int round = 0; round < 300; round++) check_each_slice_once(pool, 20);
  stop = true;
  resizer.join();
}

TEST(a_pool_of_no_threads_is_refused) {
  CHECK_THROWS(ThreadPool(0), std::invalid_argument, "at least 1 thread, not 0");
  ThreadPool pool(2);
  CHECK_THROWS(pool.resize(-1), std::invalid_argument, "not -1");
  CHECK_EQ(pool.threads(), 2);
}

TEST(a_pool_may_go_right_after_a_launch) {
  for (int i = 0; i < 300; i++) {
    ThreadPool pool(3);
    check_each_slice_once(pool, 3);
  }
}
