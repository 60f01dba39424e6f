// Queue: many threads at once, and a process that exits meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "card.h"
#include "queue/queue.h"
#include "support/check.h"
#include "support/queue_jobs.h"

using namespace spyre::card;
using namespace std::chrono_literals;

TEST(a_thread_that_waits_for_a_job_helps_with_it) {
  TestCard card;
  ThreadPool pool(2);
  const auto host = std::this_thread::get_id();
  std::atomic<int> by_host{0}, all{0};
  for (int i = 0; i < 200; i++) {
    std::atomic<bool> begun{false};
    Job next = job([&] {
      begun = true;
      pool.run(64, [&](int) {
        all++;
        by_host += std::this_thread::get_id() == host;
        std::this_thread::sleep_for(5us);
      });
    });
    next.pool = &pool;
    card.queue.submit(std::move(next));
    while (!begun) std::this_thread::yield();  // by the executor: this thread does not wait yet
    card.queue.synchronize();
    CHECK_EQ(all.load(), 64 * (i + 1));
  }
  CHECK(by_host > 0);
}

// Pauses shorter and longer than the executor stays awake, jobs of several threads in between.
TEST(no_job_is_left_behind_after_a_pause) {
  TestCard card;
  std::atomic<int> ran{0};
  const auto host = [&](int id) {
    std::mt19937 random(id);
    for (int i = 0; i < 400; i++) {
      card.queue.submit(job([&] { ran++; }));
      if (random() % 3 == 0) card.queue.synchronize();
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      if (random() % 40 == 0) std::this_thread::sleep_for(2ms);
    }
  };
  std::thread other(host, 1);
  host(2);
  other.join();
  CHECK(becomes([&] { return ran == 800; }));  // nobody waits for the last ones
}

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
