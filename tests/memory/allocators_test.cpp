// Tests allocators, accounts, and what Storage::allocate() does with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "core/values/allocation.h"
#include "treadle/allocator.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle {
namespace {

constexpr auto kOther = MemoryClass::other;

/// Counts the allocations of the allocator that it wraps, and fails on request.
class CountingAllocator final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "counting"; }
  void* allocate(size_t size_bytes, MemoryClass c) override {
    if (fails) return nullptr;
    bytes += size_bytes;
    ++blocks;
    return plain_allocator()->allocate(size_bytes, c);
  }
  void free(void* data, size_t size_bytes, MemoryClass c) noexcept override {
    bytes -= size_bytes;
    --blocks;
    plain_allocator()->free(data, size_bytes, c);
  }
  bool fails = false;
  size_t bytes = 0;
  int blocks = 0;
};

TEST(Allocators, ArenaBlocksNeverOverlapAndGoBackWhenIdle) {
  auto upstream = std::make_shared<CountingAllocator>();
  auto arena = make_allocator("arena", upstream);
  std::mt19937 random(7);
  std::map<std::byte*, std::pair<size_t, std::byte>> live;  // for each block, its size and the byte that fills it
  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || random() % 2 == 0) {
      size_t size = 1 + random() % (random() % 8 == 0 ? 3'000'000 : 5000);
      auto* data = static_cast<std::byte*>(arena->allocate(size, kOther));
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % Storage::kAlignment, 0U);
      std::byte fill{static_cast<unsigned char>(random())};
      std::fill_n(data, size, fill);
      ASSERT_TRUE(live.emplace(data, std::pair(size, fill)).second);
    } else {
      auto block = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      auto [size, fill] = block->second;
      for (size_t i = 0; i < size; i += 61) ASSERT_EQ(block->first[i], fill) << "two blocks share bytes";
      ASSERT_EQ(block->first[size - 1], fill);
      arena->free(block->first, size, kOther);
      live.erase(block);
    }
  }
  size_t used = 0, regions = 0;
  arena->visit_regions([&](const MemoryRegion& region) { used += region.used, ++regions; });
  EXPECT_EQ(used, live.size());
  EXPECT_LE(regions, 2 * live.size() + static_cast<size_t>(upstream->blocks)) << "free neighbours are one region";
  for (auto& [data, block] : live) arena->free(data, block.first, kOther);
  EXPECT_EQ(upstream->bytes, 0U);
}

TEST(Allocators, ThePatternIsInNewAndRenewedAndFreedMemoryAndDiffers) {
  auto arena = make_allocator("arena");
  auto pattern = make_allocator("pattern", arena);
  auto* data = static_cast<std::byte*>(pattern->allocate(256, kOther));
  auto byte = [&] {
    const std::byte first = data[0];
    EXPECT_EQ(std::count(data, data + 256, first), 256);
    float number = 0;
    std::memcpy(&number, data, sizeof number);
    EXPECT_GT(number, 1e34F);
    return first;
  };
  const std::byte fresh = byte();
  pattern->renew(data, 256);
  const std::byte renewed = byte();
  EXPECT_NE(fresh, renewed);
  void* other = arena->allocate(64, kOther);  // this block prevents the arena from freeing its memory
  pattern->free(data, 256, kOther);
  EXPECT_NE(data[100], renewed);
  arena->free(other, 64, kOther);
}

TEST(Allocators, ArenaTakesTheRegionThatFitsBest) {
  auto arena = make_allocator("arena");
  void* large = arena->allocate(4096, kOther);
  void* between = arena->allocate(64, kOther);
  void* small = arena->allocate(1024, kOther);
  void* last = arena->allocate(64, kOther);
  arena->free(large, 4096, kOther);
  arena->free(small, 1024, kOther);
  EXPECT_EQ(arena->allocate(1000, kOther), small);
  EXPECT_EQ(arena->allocate(2000, kOther), large);
  for (void* data : {between, last, small, large}) arena->free(data, 64, kOther);
}

TEST(Allocators, ArenaGivesASmallerBlockWhereALargeOneCannotBeHad) {
  auto upstream = std::make_shared<CountingAllocator>();
  auto arena = make_allocator("arena", upstream);
  upstream->fails = true;
  EXPECT_EQ(arena->allocate(100, kOther), nullptr);
  upstream->fails = false;
  void* data = arena->allocate(100, kOther);
  ASSERT_NE(data, nullptr);
  arena->free(data, 100, kOther);
  EXPECT_EQ(upstream->blocks, 0);
}

std::string fault_of(Allocator& allocator) {
  try {
    allocator.check();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    return error.what();
  }
  return {};
}

TEST(Allocators, GuardFindsWritesBeyondABlockAndAfterItsEnd) {
  auto guard = make_allocator("guard");
  auto* data = static_cast<char*>(guard->allocate(100, MemoryClass::scratch));
  std::memset(data, 1, 100);
  EXPECT_EQ(fault_of(*guard), "");
  data[100] = 1;
  EXPECT_EQ(fault_of(*guard), "memory behind a block was written: byte 100 of block 0 of 100 bytes for scratch");
  EXPECT_EQ(fault_of(*guard), "") << "once";
  guard->free(data, 100, MemoryClass::scratch);

  auto* second = static_cast<char*>(guard->allocate(64, kOther));
  second[-1] = 1;
  guard->free(second, 64, kOther);
  EXPECT_EQ(fault_of(*guard), "memory before a block was written: byte -1 of block 1 of 64 bytes for other");

  auto* third = static_cast<char*>(guard->allocate(64, kOther));
  guard->free(third, 64, kOther);
  third[8] = 1;
  EXPECT_EQ(fault_of(*guard), "a block was written after it was freed: byte 8 of block 2 of 64 bytes for other");
  EXPECT_GT(guard->trim(), 0U);
}

TEST(Allocators, NanFillsNewAndRenewedMemory) {
  auto nan = make_allocator("nan+arena");
  auto* data = static_cast<float*>(nan->allocate(64, kOther));
  EXPECT_TRUE(std::isnan(data[0]) && std::isnan(data[15]));
  data[3] = 1;
  nan->renew(data, 64);
  EXPECT_TRUE(std::isnan(data[3]));
  nan->free(data, 64, kOther);
}

TEST(Allocators, RecordingKeepsWhatHappenedInOrder) {
  auto allocator = make_allocator("recording");
  auto& recording = dynamic_cast<RecordingAllocator&>(*allocator);
  void* a = allocator->allocate(10, MemoryClass::packed);
  allocator->free(a, 10, MemoryClass::packed);
  auto events = recording.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].data, a);
  EXPECT_EQ(events[0].memory_class, MemoryClass::packed);
  EXPECT_FALSE(events[0].freed);
  EXPECT_TRUE(events[1].freed);
  EXPECT_LE(events[0].time_ns, events[1].time_ns);
  recording.clear();
  EXPECT_TRUE(recording.events().empty());
}

TEST(Allocators, UnknownNamesAreRefused) {
  try {
    make_allocator("nan+magic");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "there is no allocator \"magic\"; the allocators are plain, arena, guard, nan, pattern and recording, joined by \"+\"");
  }
}

TEST(MemoryAccount, CountsPerClassUpToItsLimitAndThatOfItsParent) {
  auto job = std::make_shared<MemoryAccount>("the job", 1000);
  MemoryAccount session("the session", 800, job);
  EXPECT_TRUE(session.try_charge(MemoryClass::weights, 600));
  EXPECT_FALSE(session.try_charge(MemoryClass::io, 201));
  EXPECT_EQ(job->bytes(), 600U) << "what was refused is charged nowhere";
  EXPECT_TRUE(job->try_charge(MemoryClass::other, 300));
  try {
    session.charge(MemoryClass::io, 150);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_EQ(std::string(error.what()),
              "the memory limit of 1000 bytes of the job leaves no 150 bytes for io: 900 are in use; a limit of 1050 has room for them");
  }
  session.charge(MemoryClass::io, 100);
  session.discharge(MemoryClass::io, 100);
  MemoryStatistics statistics = session.statistics();
  EXPECT_EQ(statistics[MemoryClass::weights].bytes, 600U);
  EXPECT_EQ(statistics[MemoryClass::io].bytes, 0U);
  EXPECT_EQ(statistics[MemoryClass::io].peak_bytes, 100U);
  EXPECT_EQ(statistics[MemoryClass::io].num_allocations, 1);
  EXPECT_EQ(statistics.total.peak_bytes, 700U);
  session.reset_peaks();
  EXPECT_EQ(session.statistics().total.peak_bytes, 600U);
}

TEST(MemoryAccount, ThreadsNeverPassTheLimitTogether) {
  MemoryAccount account("all", 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i)
        if (account.try_charge(kOther, 300)) account.discharge(kOther, 300);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.bytes(), 0U);
  EXPECT_LE(account.statistics().total.peak_bytes, 1000U);
}

TEST(AllocationScope, StoragesComeFromTheScopesAllocatorAndArePaidByItsAccount) {
  auto counting = std::make_shared<CountingAllocator>();
  AllocationContext context{counting, std::make_shared<MemoryAccount>("the run", 4096)};
  Tensor outlives;
  {
    AllocationScope scope(&context, MemoryClass::activations);
    Tensor tensor(DType::float32, Shape{100});
    EXPECT_EQ(account_of(tensor.storage()), context.account.get());
    EXPECT_EQ(context.account->statistics()[MemoryClass::activations].bytes, 448U) << "a multiple of the alignment";
    {
      AllocationScope io(&context, MemoryClass::io);
      outlives = Tensor(DType::float32, Shape{10});
    }
    EXPECT_EQ(context.account->statistics()[MemoryClass::io].bytes, 64U);
    EXPECT_THROW(Tensor(DType::float32, Shape{1000}), Error) << "above the limit";
    counting->fails = true;
    EXPECT_THROW(Tensor(DType::float32, Shape{10}), Error);
    EXPECT_EQ(context.account->bytes(), 512U);
  }
  EXPECT_EQ(counting->blocks, 1);
  Tensor apart(DType::float32, Shape{10});
  EXPECT_EQ(account_of(apart.storage()), nullptr);
  hand_over(outlives.storage());
  EXPECT_EQ(context.account->bytes(), 0U);
  EXPECT_EQ(account_of(outlives.storage()), nullptr);
  outlives = Tensor();
  EXPECT_EQ(context.account->bytes(), 0U);
  EXPECT_EQ(counting->bytes, 0U);
}

TEST(AllocationScope, StringsAreDestroyedBeforeTheirMemoryGoesBack) {
  auto counting = std::make_shared<CountingAllocator>();
  AllocationContext context{make_allocator("guard", counting), nullptr};
  {
    AllocationScope scope(&context, kOther);
    Tensor strings = Tensor::strings(Shape{2}, std::vector<std::string>{std::string(100, 'a'), std::string(100, 'b')});
  }
  EXPECT_NO_THROW(context.allocator->check());
  context.allocator.reset();
  EXPECT_EQ(counting->blocks, 0);
}

}  // namespace
}  // namespace treadle
