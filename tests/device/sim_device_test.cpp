#include "device/sim/sim_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "treadle/error.h"

namespace treadle {
namespace {

template <typename Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

void check(Stream& stream, const void* data, size_t size_bytes, Access access, std::string_view name) {
  stream.device().access_checks()->check(stream, data, size_bytes, access, name);
}

// Runs with several seeds of random delays. Every check must hold for any delay.
class SimDeviceTest : public testing::TestWithParam<uint64_t> {
 protected:
  std::shared_ptr<SimDevice> device_ = SimDevice::create({.seed = GetParam(), .max_delay_us = 200});
  std::unique_ptr<Stream> first_ = device_->create_stream("first"), second_ = device_->create_stream("second");

  // Enqueues work with the access declared.
  void fill(Stream& stream, const std::shared_ptr<Storage>& storage, int value, const char* name = "fill") {
    check(stream, storage->data(), storage->size_bytes(), Access::write, name);
    stream.enqueue([=] { std::memset(storage->data(), value, storage->size_bytes()); }, name);
  }
  void add_one(Stream& stream, const std::shared_ptr<Storage>& to, const std::shared_ptr<Storage>& from) {
    check(stream, from->data(), from->size_bytes(), Access::read, "add_one");
    check(stream, to->data(), to->size_bytes(), Access::write, "add_one");
    stream.enqueue(
        [=] {
          for (size_t i = 0; i < to->size_bytes(); ++i) to->data()[i] = static_cast<std::byte>(static_cast<int>(from->data()[i]) + 1);
        },
        "add_one");
  }
  std::vector<uint8_t> fetch(Stream& stream, const std::shared_ptr<Storage>& storage) {
    std::vector<uint8_t> bytes(storage->size_bytes());
    stream.copy(bytes.data(), storage->data(), bytes.size(), CopyKind::device_to_host);
    stream.synchronize();
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, SimDeviceTest, testing::Values(1, 2, 3, 4, 5));

TEST_P(SimDeviceTest, AStreamKeepsItsOrder) {
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) first_->enqueue([&order, i] { order.push_back(i); }, "append");
  first_->synchronize();
  std::vector<int> expected(50);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(SimDeviceTest, AnEventOrdersTwoStreams) {
  auto a = device_->allocate(64), b = device_->allocate(64);
  auto ready = device_->create_event();
  fill(*first_, a, 41);
  first_->record(*ready);
  second_->wait(ready);
  add_one(*second_, b, a);
  EXPECT_EQ(fetch(*second_, b), std::vector<uint8_t>(64, 42));
}

TEST_P(SimDeviceTest, ALongChainOverTwoStreamsComputesTheRightValue) {
  auto a = device_->allocate(16), b = device_->allocate(16);
  fill(*first_, a, 0);
  for (int i = 0; i < 10; ++i) {
    auto there = device_->create_event(), back = device_->create_event();
    first_->record(*there);
    second_->wait(there);
    add_one(*second_, b, a);
    second_->record(*back);
    first_->wait(back);
    add_one(*first_, a, b);
  }
  EXPECT_EQ(fetch(*first_, a), std::vector<uint8_t>(16, 20));
}

TEST_P(SimDeviceTest, AMissingEventIsFoundWhateverTheTiming) {
  auto a = device_->allocate(64);
  fill(*first_, a, 1, "producer");
  EXPECT_EQ(
      message_of([&] { check(*second_, a->data() + 16, 8, Access::read, "consumer"); }),
      "race on bytes 16 to 24 of a device block of 64: the read by \"consumer\" on stream \"second\" is not ordered after the write by "
      "\"producer\" on stream \"first\"");
  first_->synchronize();
  EXPECT_NO_THROW(check(*second_, a->data(), 64, Access::read, "consumer after the host has waited"));
}

TEST_P(SimDeviceTest, AWriteMustWaitForReaders) {
  auto a = device_->allocate(64);
  fill(*first_, a, 1);
  first_->synchronize();
  check(*second_, a->data(), 64, Access::read, "reader");
  second_->enqueue([] {}, "reader");
  EXPECT_NO_THROW(check(*first_, a->data(), 64, Access::read, "two readers need no order"));
  EXPECT_NE(message_of([&] { check(*first_, a->data() + 60, 4, Access::write, "writer"); }).find("the read by \"reader\""),
            std::string::npos);
}

TEST_P(SimDeviceTest, OtherBytesDoNotRace) {
  auto a = device_->allocate(128);
  check(*first_, a->data(), 64, Access::write, "low half");
  first_->enqueue([] {}, "low half");
  EXPECT_NO_THROW(check(*second_, a->data() + 64, 64, Access::write, "high half"));
}

TEST_P(SimDeviceTest, AnEventCoversOnlyWhatWasBeforeItsRecord) {
  auto a = device_->allocate(64), b = device_->allocate(64);
  auto event = device_->create_event();
  fill(*first_, a, 1);
  first_->record(*event);
  fill(*first_, b, 2, "after the record");
  second_->wait(event);
  EXPECT_NO_THROW(check(*second_, a->data(), 64, Access::read, "covered"));
  EXPECT_NE(message_of([&] { check(*second_, b->data(), 64, Access::read, "not covered"); }).find("after the record"), std::string::npos);
}

TEST_P(SimDeviceTest, OrderPassesThroughAThirdStream) {
  auto third = device_->create_stream("third");
  auto a = device_->allocate(64);
  auto one = device_->create_event(), two = device_->create_event();
  fill(*first_, a, 7);
  first_->record(*one);
  second_->wait(one);
  second_->record(*two);
  third->wait(two);
  EXPECT_EQ(fetch(*third, a), std::vector<uint8_t>(64, 7));
}

TEST_P(SimDeviceTest, TheHostMustWaitToo) {
  auto a = device_->allocate(64);
  fill(*first_, a, 1);
  EXPECT_NE(message_of([&] { device_->check_host_access(a->data(), 64, Access::read, "host"); }).find("on the host"), std::string::npos);
  auto event = device_->create_event();
  first_->record(*event);
  event->synchronize();
  EXPECT_TRUE(event->complete());
  EXPECT_NO_THROW(device_->check_host_access(a->data(), 64, Access::write, "host"));
}

TEST_P(SimDeviceTest, MemoryFreedUnderWorkIsReportedWithoutACrash) {
  auto a = device_->allocate(64);
  std::byte* data = a->data();
  device_->pause(*first_);
  check(*first_, data, 64, Access::write, "late fill");
  first_->enqueue([data] { std::memset(data, 0, 64); }, "late fill");
  a.reset();
  device_->resume(*first_);
  EXPECT_NE(message_of([&] { first_->synchronize(); }).find("freed on the host while it may still be in use: the write by \"late fill\""),
            std::string::npos);
}

TEST_P(SimDeviceTest, WorkMayHoldTheLastReferenceToItsMemory) {
  // Set when the host has dropped its reference; otherwise quick work might leave the last reference to the host.
  std::promise<void> dropped;
  first_->enqueue([waiting = dropped.get_future().share()] { waiting.wait(); }, "wait for the host");
  for (int i = 0; i < 20; ++i) {
    auto a = device_->allocate(64);
    fill(*first_, a, i);
  }
  dropped.set_value();
  EXPECT_NO_THROW(first_->synchronize());
  EXPECT_EQ(device_->allocated_bytes(), 0U);
}

TEST_P(SimDeviceTest, AnErrorReachesSynchronizeAndLaterWorkIsSkipped) {
  bool ran = false;
  auto event = device_->create_event();
  first_->enqueue([] { throw std::runtime_error("kernel failed"); }, "bad");
  first_->enqueue([&] { ran = true; }, "skipped");
  first_->record(*event);
  second_->wait(event);  // the wait must not hang, although the work before the event has failed
  second_->synchronize();
  EXPECT_THROW(first_->synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
  first_->enqueue([&] { ran = true; }, "usable again");
  first_->synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(SimDeviceTest, DevicesThatShareACheckerOrderEachOther) {
  auto checker = std::make_shared<AccessChecker>();
  auto one = SimDevice::create({.name = "one", .seed = GetParam(), .max_delay_us = 100, .checker = checker});
  auto two = SimDevice::create({.name = "two", .seed = GetParam() + 100, .max_delay_us = 100, .checker = checker});
  auto from = one->create_stream("from"), to = two->create_stream("to");
  auto a = one->allocate(32), b = two->allocate(32);
  fill(*from, a, 9);
  EXPECT_NE(message_of([&] { to->copy(b->data(), a->data(), 32, CopyKind::device_to_device); }).find("race"), std::string::npos);
  auto event = one->create_event();
  from->record(*event);
  to->wait(event);
  to->copy(b->data(), a->data(), 32, CopyKind::device_to_device);
  EXPECT_EQ(fetch(*to, b), std::vector<uint8_t>(32, 9));
}

TEST_P(SimDeviceTest, HostThreadsMayDriveAStreamEach) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([this, t] {
      auto stream = device_->create_stream("own");
      for (int i = 0; i < 20; ++i) {
        auto a = device_->allocate(32);
        fill(*stream, a, t);
        EXPECT_EQ(fetch(*stream, a), std::vector<uint8_t>(32, static_cast<uint8_t>(t)));
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(SimDevice, PausedStreamsLetOthersPass) {
  auto device = SimDevice::create();
  auto slow = device->create_stream("slow"), fast = device->create_stream("fast");
  std::atomic<int> done{0};
  device->pause(*slow);
  slow->enqueue([&] { done = 2; }, "second");
  fast->enqueue([&] { done = 1; }, "first");
  fast->synchronize();
  EXPECT_EQ(done, 1);
  device->resume(*slow);
  slow->synchronize();
  EXPECT_EQ(done, 2);
}

TEST(SimDevice, StreamsTakeTurnsAtASharedEngineAndCopiesDoNot) {
  auto device = SimDevice::create({.shared_engine = true});
  auto a = device->create_stream("a"), b = device->create_stream("b");
  std::atomic<int> inside{0}, most{0}, done{0};
  for (int i = 0; i < 100; ++i)
    for (Stream* stream : {a.get(), b.get()})
      stream->enqueue(
          [&] {
            const int now = ++inside;
            most = std::max(most.load(), now);
            std::this_thread::yield();
            --inside;
            ++done;
          },
          "work");
  a->synchronize();
  b->synchronize();
  EXPECT_EQ(done, 200);
  EXPECT_EQ(most, 1);
  // Copies do not need the compute engine: one ends while a kernel holds it.
  auto memory = device->allocate(4);
  int value = 7;
  std::promise<void> copied;
  auto held = copied.get_future().share();
  a->enqueue([held] { held.wait(); }, "holds the engine");
  b->copy(memory->data(), &value, 4, CopyKind::host_to_device);
  b->synchronize();
  copied.set_value();
  a->synchronize();
}

TEST(SimDevice, APaceMakesTheEngineTakeAMultipleOfTheHostsTime) {
  auto device = SimDevice::create({.shared_engine = true, .engine_pace = 10});
  auto stream = device->create_stream("s");
  using Clock = std::chrono::steady_clock;
  Clock::duration inside{};
  const auto start = Clock::now();
  stream->enqueue(
      [&] {
        const auto begin = Clock::now();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        inside = Clock::now() - begin;
      },
      "work");
  stream->synchronize();
  EXPECT_GE(Clock::now() - start, 10 * inside);
}

TEST(SimDevice, WorkThatGivesWayLeavesAPacedEngineAndGoesOnLater) {
  auto device = SimDevice::create({.shared_engine = true, .engine_pace = 100});
  auto first = device->create_stream("first"), last = device->create_stream("last");
  device->shared_engine()->set_gives_way(*last, [] {});
  std::promise<void> computed;
  std::atomic<bool> last_is_done{false};
  last->enqueue(
      [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        computed.set_value();
      },
      "gives way");
  last->enqueue([&] { last_is_done = true; }, "behind it");
  computed.get_future().wait();
  first->enqueue([] {}, "goes first");
  first->synchronize();
  EXPECT_FALSE(last_is_done);
  last->synchronize();
  EXPECT_TRUE(last_is_done);
}

TEST(SimDevice, StreamsComputeBesideEachOtherWithoutASharedEngine) {
  auto device = SimDevice::create();
  auto a = device->create_stream("a"), b = device->create_stream("b");
  std::promise<void> from_a, from_b;  // each kernel waits for the other
  a->enqueue([&] { from_a.set_value(), from_b.get_future().wait(); }, "a");
  b->enqueue([&] { from_b.set_value(), from_a.get_future().wait(); }, "b");
  a->synchronize();
  b->synchronize();
}

TEST(SimDevice, MemoryIsLimitedAndPatterned) {
  auto device = SimDevice::create({.memory_bytes = 256});
  auto a = device->allocate(100);
  EXPECT_EQ(device->allocated_bytes(), 128U);
  EXPECT_EQ(static_cast<uint8_t>(a->data()[99]), SimDevice::kNewMemory);
  EXPECT_EQ(message_of([&] { device->allocate(200); }), "sim cannot allocate 200 bytes: 128 of 256 are in use");
  a.reset();
  EXPECT_NO_THROW(device->allocate(200));
  EXPECT_EQ(device->allocated_bytes(), 0U);
}

TEST(SimDevice, StrayPointersAreRefused) {
  auto device = SimDevice::create();
  auto stream = device->create_stream("s");
  auto a = device->allocate(64);
  int on_host = 0;
  EXPECT_NE(message_of([&] { check(*stream, &on_host, 4, Access::read, "k"); }).find("has not allocated"), std::string::npos);
  EXPECT_NE(message_of([&] { check(*stream, a->data() + 60, 8, Access::read, "k"); }).find("has not allocated"), std::string::npos);
  EXPECT_EQ(message_of([&] { stream->wait(device->create_event()); }), "a stream waits for an event that was never recorded");
}

TEST(CpuDevice, WorkRunsAtOnceAndErrorsReachTheCaller) {
  auto device = cpu_device();
  auto stream = device->create_stream("s");
  int value = 0;
  stream->enqueue([&] { value = 5; }, "set");
  EXPECT_EQ(value, 5);
  EXPECT_THROW(stream->enqueue([] { throw std::runtime_error("bad"); }, "bad"), std::runtime_error);
  auto a = device->allocate(4);
  stream->copy(a->data(), &value, 4, CopyKind::host_to_device);
  EXPECT_EQ(*reinterpret_cast<int*>(a->data()), 5);
  auto event = device->create_event();
  stream->record(*event);
  EXPECT_TRUE(event->complete());
}

TEST(CpuDevice, WaitsForEventsOfAsynchronousDevices) {
  auto sim = SimDevice::create({.seed = 3, .max_delay_us = 500});
  auto stream = sim->create_stream("s");
  std::atomic<bool> done{false};
  auto event = sim->create_event();
  stream->enqueue([&] { done = true; }, "set");
  stream->record(*event);
  auto host = cpu_device()->create_stream("host");
  host->wait(event);
  host->enqueue([&] { EXPECT_TRUE(done); }, "check");
}

// Each piece of work reads the clock itself, so the host knows the bounds of the times that the device reports.
TEST_P(SimDeviceTest, TimesOfWorkAreThoseOfTheStreamsThread) {
  using Clock = std::chrono::steady_clock;
  const auto ns = [](Clock::time_point t) { return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count(); };
  ASSERT_TRUE(device_->tells_times());
  auto a = device_->allocate(64);
  std::vector<uint8_t> host(64, 7);
  std::vector<std::pair<int64_t, int64_t>> told;
  std::vector<int64_t> inside;
  const auto tell = [&](int64_t begin, int64_t end) { told.emplace_back(begin, end); };
  const auto read_clock = [&] { inside.push_back(ns(Clock::now())); };
  device_->pause(*first_);
  first_->begin_timed();  // the host begins the timed section
  first_->enqueue(read_clock, "work");
  first_->copy(a->data(), host.data(), 64, CopyKind::host_to_device);
  first_->end_timed(tell);
  first_->enqueue(
      [&] {  // the work begins the timed section, twice
        for (int i = 0; i < 2; ++i) {
          first_->begin_timed();
          read_clock();
          first_->end_timed(tell);
        }
      },
      "two pieces");
  first_->begin_timed();  // a timed section in which nothing happens
  first_->end_timed(tell);
  const int64_t resumed = ns(Clock::now());
  device_->resume(*first_);
  first_->synchronize();
  ASSERT_EQ(told.size(), 4U);
  int64_t last = resumed;
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_LE(last, told[i].first) << i;
    EXPECT_LE(told[i].first, told[i].second) << i;
    if (i < inside.size()) {
      EXPECT_LE(told[i].first, inside[i]) << i;
      EXPECT_GE(told[i].second, inside[i]) << i;
    }
    last = told[i].second;
  }
  EXPECT_LE(last, ns(Clock::now()));
}

}  // namespace
}  // namespace treadle
