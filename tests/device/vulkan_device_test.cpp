// Tests the Vulkan device, on the first one of the machine, which may be a driver that computes on the CPU.
#include "device/vulkan/vulkan_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "device/vulkan/device_clock.h"
#include "device/vulkan/heap.h"
#include "device/vulkan/pipeline_file.h"
#include "device/vulkan/time_stamps.h"
#include "treadle/error.h"

namespace treadle {
namespace {

std::vector<vulkan::PhysicalDevice> devices() {
  try {
    return vulkan::physical_devices();
  } catch (const Error&) {
    return {};
  }
}

class VulkanDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto found = devices();
    if (found.empty()) GTEST_SKIP() << "this machine has no Vulkan";
    device_ = vulkan::VulkanDevice::open(found[0], "gpu:0");
  }
  static std::vector<uint8_t> numbers(size_t count) {
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
    return bytes;
  }
  std::shared_ptr<vulkan::VulkanDevice> device_;
};

// Copies sizes that exceed one staging copy, and sizes that are no multiple of four bytes.
TEST_F(VulkanDeviceTest, BytesComeBackFromTheDeviceAsTheyWent) {
  for (const size_t size : {size_t{1}, size_t{13}, size_t{1} << 20, (size_t{40} << 20) + 3}) {
    const std::vector<uint8_t> sent = numbers(size);
    std::vector<uint8_t> back(size);
    const auto a = device_->allocate(size), b = device_->allocate(size);
    auto stream = device_->create_stream("test");
    stream->copy(a->data(), sent.data(), size, CopyKind::host_to_device);
    stream->copy(b->data(), a->data(), size, CopyKind::device_to_device);
    stream->copy(back.data(), b->data(), size, CopyKind::device_to_host);
    stream->synchronize();
    EXPECT_EQ(back, sent) << size;
  }
}

TEST_F(VulkanDeviceTest, AnEventOfOneStreamOrdersTheWorkOfAnother) {
  const size_t size = 3 << 20;
  const std::vector<uint8_t> sent = numbers(size);
  const auto memory = device_->allocate(size), other = device_->allocate(size);
  for (int round = 0; round < 20; ++round) {
    std::vector<uint8_t> back(size);
    auto first = device_->create_stream("first"), second = device_->create_stream("second");
    const auto written = device_->create_event(), read = device_->create_event();
    EXPECT_TRUE(written->complete());  // an event that was never recorded counts as complete
    first->copy(memory->data(), sent.data(), size, CopyKind::host_to_device);
    first->record(*written);
    second->wait(written);
    second->copy(other->data(), memory->data(), size, CopyKind::device_to_device);
    second->copy(back.data(), other->data(), size, CopyKind::device_to_host);
    second->record(*read);
    read->synchronize();  // waiting for the event suffices: the copy to the host has ended
    EXPECT_TRUE(read->complete());
    EXPECT_EQ(back, sent);
  }
}

// A release may free memory that the other stream still writes, and must wait for it even if the stream has enqueued nothing else.
TEST_F(VulkanDeviceTest, AReleaseComesAfterTheEventForWhichItsStreamWaits) {
  const size_t size = 16 << 20;
  const auto a = device_->allocate(size), b = device_->allocate(size);
  auto first = device_->create_stream("first"), second = device_->create_stream("second");
  for (int round = 0; round < 10; ++round) {
    const auto written = device_->create_event();
    for (int i = 0; i < 20; ++i) first->copy(b->data(), a->data(), size, CopyKind::device_to_device);
    first->record(*written);
    second->wait(written);
    bool is_written = false;
    second->enqueue_release([&] { is_written = written->complete(); });
    const auto released = device_->create_event();
    second->record(*released);
    while (!released->complete()) std::this_thread::yield();
    EXPECT_TRUE(is_written);
    first->synchronize();
  }
}

// Copies within the device, in one command buffer and in two, are done again with what their sources contain by then.
TEST_F(VulkanDeviceTest, RecordedWorkIsDoneAgain) {
  ASSERT_TRUE(device_->records_work());
  for (const size_t num_copies : {40, 100}) {
    const size_t size = 1000;
    std::vector<std::shared_ptr<Storage>> blocks;
    for (size_t i = 0; i <= num_copies; ++i) blocks.push_back(device_->allocate(size));
    auto stream = device_->create_stream("test");
    std::unique_ptr<RecordedWork> work;
    for (uint8_t round = 0; round < 10; ++round) {
      std::vector<uint8_t> sent = numbers(size), back(size);
      for (uint8_t& byte : sent) byte = static_cast<uint8_t>(byte + round);
      stream->copy(blocks.front()->data(), sent.data(), size, CopyKind::host_to_device);
      if (!work) {
        stream->begin_recorded();
        for (size_t i = 1; i < blocks.size(); ++i) stream->copy(blocks[i]->data(), blocks[i - 1]->data(), size, CopyKind::device_to_device);
        work = stream->end_recorded();
        ASSERT_TRUE(work);
      } else {
        ASSERT_TRUE(stream->submit_again(*work));
        if (num_copies == 40) {  // in one command buffer, which is not submitted yet
          EXPECT_FALSE(stream->submit_again(*work));
        }
      }
      stream->copy(back.data(), blocks.back()->data(), size, CopyKind::device_to_host);
      stream->synchronize();
      EXPECT_EQ(back, sent) << num_copies << " copies, round " << int{round};
    }
    work.reset();  // before its stream
  }
}

TEST_F(VulkanDeviceTest, WorkThatCannotBeDoneAgainIsNotRecorded) {
  std::vector<uint8_t> bytes = numbers(100), back(100);
  const auto a = device_->allocate(100), b = device_->allocate(100);
  auto stream = device_->create_stream("test");
  stream->begin_recorded();
  stream->copy(a->data(), bytes.data(), 100, CopyKind::host_to_device);
  EXPECT_FALSE(stream->end_recorded());
  stream->begin_recorded();
  stream->copy(b->data(), a->data(), 100, CopyKind::device_to_device);
  stream->copy(back.data(), b->data(), 100, CopyKind::device_to_host);
  EXPECT_FALSE(stream->end_recorded());
  stream->synchronize();  // though it was done
  EXPECT_EQ(back, bytes);
}

// A copy names a buffer. Another one may lie at its address later.
TEST_F(VulkanDeviceTest, RecordedCopiesDoNotOutliveTheirMemory) {
  const size_t size = 20 << 20;  // large enough for a buffer of its own
  auto stream = device_->create_stream("test");
  auto a = device_->allocate(size), b = device_->allocate(size);
  stream->begin_recorded();
  stream->copy(b->data(), a->data(), size, CopyKind::device_to_device);
  std::unique_ptr<RecordedWork> work = stream->end_recorded();
  stream->synchronize();
  ASSERT_TRUE(work);
  a.reset();
  EXPECT_FALSE(stream->submit_again(*work));
  a = device_->allocate(size);
  EXPECT_FALSE(stream->submit_again(*work));
  work.reset();
}

TEST_F(VulkanDeviceTest, MemoryIsAlignedAndServesAgain) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::shared_ptr<Storage>> blocks;
    for (size_t i = 0; i < 100; ++i) {
      blocks.push_back(device_->allocate(1 + i * 97'777 % 300'000));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()->data()) % Storage::kAlignment, 0U);
    }
    for (size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  }
}

TEST_F(VulkanDeviceTest, MoreThanTheDeviceHasIsOutOfMemory) {
  try {
    device_->allocate(SIZE_MAX / 2);
    FAIL() << "it was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.message();
  }
}

TEST_F(VulkanDeviceTest, OutOfMemorySaysWhatIsHeld) {
  const auto held = device_->allocate(size_t{20} << 20);
  try {
    device_->allocate(SIZE_MAX / 2);
    FAIL() << "it was allocated";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(std::to_string(size_t{20} << 20)), std::string::npos) << error.message();
  }
}

// Contents keep the address that they were allocated at when they move, while shaders get the address in the memory where they lie.
TEST_F(VulkanDeviceTest, ContentsMoveBetweenItsMemoryAndTheHosts) {
  for (const size_t size : {size_t{1}, size_t{1000}, (size_t{20} << 20) + 4}) {
    for (const bool keeps : {false, true}) {
      Bus& bus = *device_->bus();
      const auto block = bus.allocate_anywhere(2 * size);
      std::byte* const data = block->data();
      const std::vector<uint8_t> sent = numbers(size);
      std::vector<uint8_t> back(size);
      auto stream = device_->create_stream("test");
      const auto contents = [&] {
        std::fill(back.begin(), back.end(), 0);
        stream->copy(back.data(), data, size, CopyKind::device_to_host);
        stream->synchronize();
        return back;
      };
      EXPECT_THROW(stream->copy(back.data(), data, size, CopyKind::device_to_host), Error) << "there are no contents yet";
      void* const on_host = bus.reach(data, size);
      EXPECT_NE(on_host, data);
      stream->copy(data, sent.data(), size, CopyKind::host_to_device);
      if (keeps) bus.keep_on_host(data, size);
      EXPECT_EQ(contents(), sent);
      for (int round = 0; round < 3; ++round) {
        void* const before = bus.reach(data, size);
        ASSERT_TRUE(bus.reserve(data, size));
        bus.move(*stream, data, size, Bus::Move::to_device);
        EXPECT_NE(bus.reach(data, size), before);
        EXPECT_EQ(contents(), sent);
        bus.move(*stream, data, size, round == 1 ? Bus::Move::to_host : Bus::Move::back_to_host);
        EXPECT_EQ(contents(), sent) << round;  // they are found on the host at once
        bus.unreserve(data, size);
        EXPECT_EQ(contents(), sent) << round;
        if (keeps) {
          EXPECT_EQ(bus.reach(data, size), on_host);
        }
      }
      ASSERT_TRUE(bus.reserve(data + size, size));  // a neighbour without contents
      EXPECT_NE(bus.reach(data + size, size), bus.reach(data, size));
      if (size > 1) {
        EXPECT_THROW(bus.reach(data + size / 2, size), Error) << "it is neither of the two";
      }
      bus.forget(data, size);
      EXPECT_THROW(stream->copy(back.data(), data, size, CopyKind::device_to_host), Error);
    }
  }
}

// Cached pipelines are ignored if the file is damaged anywhere, or belongs to another device or another program.
TEST(PipelineFileTest, OnlyWhatWasWrittenForTheDeviceIsRead) {
  const std::string folder = testing::TempDir() + "treadle_pipelines";
  std::filesystem::remove_all(folder);
  const vulkan::PipelineFile file(folder, "a device"), other(folder, "another device");
  EXPECT_NE(file.path(), other.path());
  EXPECT_TRUE(file.read().empty());
  const std::vector<std::byte> contents(1000, std::byte{7});
  vulkan::PipelineFile::write(file.path(), "a device", contents);
  EXPECT_EQ(file.read(), contents);
  std::filesystem::copy_file(file.path(), other.path());
  EXPECT_TRUE(other.read().empty());
  const auto size = static_cast<size_t>(std::filesystem::file_size(file.path()));
  std::vector<char> whole(size);
  std::ifstream(file.path(), std::ios::binary).read(whole.data(), static_cast<std::streamsize>(size));
  for (size_t i = 0; i < size; i += 7) {
    std::vector<char> damaged = whole;
    damaged[i] ^= 1;
    std::ofstream(file.path(), std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(size));
    EXPECT_TRUE(file.read().empty()) << "byte " << i;
    std::ofstream(file.path(), std::ios::binary).write(whole.data(), static_cast<std::streamsize>(i));
    EXPECT_TRUE(file.read().empty()) << i << " bytes";
  }
  std::filesystem::remove_all(folder);
}

TEST_F(VulkanDeviceTest, AStreamWithWorkInFlightMayGo) {
  const std::vector<uint8_t> sent = numbers(1 << 20);
  const auto memory = device_->allocate(sent.size());
  std::weak_ptr<int> kept;
  {
    auto stream = device_->create_stream("test");
    auto owned = std::make_shared<int>(1);
    kept = owned;
    for (int i = 0; i < 200; ++i) stream->copy(memory->data(), sent.data(), sent.size(), CopyKind::host_to_device);
    stream->enqueue_release([owned] {});
  }
  EXPECT_TRUE(kept.expired());
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The host knows bounds of the times: a piece of work begins after the call that enqueues it, and has ended when the host has waited for
// the stream.
TEST_F(VulkanDeviceTest, TimesOfWorkLieBetweenItsCallsAndInOrder) {
  if (!device_->tells_times()) GTEST_SKIP() << "the queue stamps no times";
  constexpr int64_t kErrorNs = 50'000'000;  // limit for the error of a comparison of clocks on a busy machine
  const std::vector<uint8_t> sent = numbers(1 << 20);
  std::vector<uint8_t> back(sent.size());
  const auto memory = device_->allocate(sent.size());
  auto stream = device_->create_stream("test");
  std::vector<std::pair<int64_t, int64_t>> told;
  for (int round = 0; round < 3; ++round) {
    told.clear();
    const int64_t before = steady_ns();
    constexpr int kPieces = 300;  // more pieces than a command buffer has room for
    for (int i = 0; i < kPieces; ++i) {
      stream->begin_timed();
      if (i % 3 != 2) stream->copy(memory->data(), sent.data(), 1000, CopyKind::host_to_device);  // every third piece is empty
      stream->end_timed([&](int64_t begin, int64_t end) { told.emplace_back(begin, end); });
      if (i % 50 == 0) stream->copy(memory->data(), sent.data(), 10, CopyKind::host_to_device);  // this copy is not timed
    }
    stream->begin_timed();
    stream->copy(memory->data(), sent.data(), sent.size(), CopyKind::host_to_device);
    stream->copy(back.data(), memory->data(), sent.size(), CopyKind::device_to_host);
    stream->end_timed([&](int64_t begin, int64_t end) { told.emplace_back(begin, end); });
    stream->synchronize();
    const int64_t after = steady_ns();
    EXPECT_EQ(back, sent);
    ASSERT_EQ(told.size(), static_cast<size_t>(kPieces + 1));
    int64_t last = before - kErrorNs;
    for (const auto& [begin, end] : told) {
      EXPECT_LE(last, begin);
      EXPECT_LE(begin, end);
      last = end;
    }
    EXPECT_LE(last, after + kErrorNs);
  }
}

// The first stamp of a timed copy may not fit into the command buffer, which is submitted then without the copy.
TEST_F(VulkanDeviceTest, ATimedCopyMayBeginACommandBuffer) {
  if (!device_->tells_times()) GTEST_SKIP() << "the queue stamps no times";
  std::vector<uint8_t> sent = numbers(1 << 20), back(sent.size());
  const auto memory = device_->allocate(sent.size());
  auto stream = device_->create_stream("test");
  for (uint8_t round = 0; round < 50; ++round) {
    for (uint8_t& byte : sent) byte = static_cast<uint8_t>(byte + 1);
    const auto copy = [&](void* dst, const void* src, CopyKind kind) {
      for (uint32_t i = 0; i < vulkan::TimeStamps::kMost / 2; ++i) {  // empty pieces, of two stamps each, fill the command buffer
        stream->begin_timed();
        stream->end_timed([](int64_t, int64_t) {});
      }
      stream->begin_timed();
      stream->copy(dst, src, sent.size(), kind);
      stream->end_timed([](int64_t, int64_t) {});
      const auto done = device_->create_event();
      stream->record(*done);
      while (!done->complete()) std::this_thread::yield();
    };
    copy(memory->data(), sent.data(), CopyKind::host_to_device);
    copy(back.data(), memory->data(), CopyKind::device_to_host);
    ASSERT_TRUE(back == sent) << int{round};
  }
}

// The driver can read both clocks at the same moment. Its readings judge the two ways in which the library compares the clocks.
TEST(DeviceClockTest, BothComparisonsAgreeWithTheDriver) {
  const auto found = devices();
  if (found.empty()) GTEST_SKIP() << "this machine has no Vulkan";
  const vulkan::Connection connection(found[0]);
  const vulkan::Connection::TimeStampUnit& unit = connection.time_stamps();
  if (unit.bits == 0 || !unit.get_calibrated) GTEST_SKIP() << "the driver does not compare clocks";
  for (const auto by : {vulkan::DeviceClock::Comparison::calibrated, vulkan::DeviceClock::Comparison::marked}) {
    vulkan::DeviceClock clock(connection, by);
    const VkCalibratedTimestampInfoEXT both[] = {
        {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_DEVICE_EXT},
        {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT}};
    uint64_t read[2] = {}, deviation = 0;
    ASSERT_EQ(unit.get_calibrated(connection.handle(), 2, both, read, &deviation), VK_SUCCESS);
    const int64_t ns = clock.steady_ns(read[0]);
    EXPECT_LE(std::abs(ns - static_cast<int64_t>(read[1])), clock.error_ns() + static_cast<int64_t>(deviation) + 10'000);
    EXPECT_EQ(clock.steady_ns(read[0] + 1000) - ns, std::llround(1000 * unit.ns_per_tick));
    EXPECT_EQ(clock.steady_ns(read[0] - 1000) - ns, -std::llround(1000 * unit.ns_per_tick));
  }
}

}  // namespace
}  // namespace treadle
