// Queue: the modelled clocks, streams, marks, and waits between cards.
#include <atomic>
#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "queue/queue.h"
#include "support/check.h"
#include "support/queue_jobs.h"

using namespace spyre::card;
using namespace std::chrono_literals;

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
