#include "core/values/large_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <array>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "core/values/allocation.h"
#include "treadle/error.h"

namespace treadle {
namespace {

TEST(LargeMemory, IsWritableFromEndToEndAndAligned) {
  for (size_t size : {size_t{0}, size_t{1}, (size_t{2} << 20) - 1, size_t{2} << 20, (size_t{5} << 20) + 12'345, size_t{64} << 20}) {
    const std::shared_ptr<Storage> storage = allocate_large(size);
    EXPECT_EQ(storage->size_bytes(), size);
    EXPECT_TRUE(storage->writable());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(storage->data()) % Storage::kAlignment, 0U);
    std::memset(storage->data(), 0x5A, size);
    EXPECT_TRUE(size == 0 || storage->data()[size - 1] == std::byte{0x5A});
  }
}

TEST(LargeMemory, BlocksDoNotOverlap) {
  constexpr size_t kSize = (size_t{3} << 20) + 7;
  std::vector<std::shared_ptr<Storage>> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(allocate_large(kSize));
    std::memset(blocks.back()->data(), i, kSize);
    if (i % 3 == 2) blocks.erase(blocks.begin());
  }
  for (const auto& block : blocks)
    for (size_t at = 0; at < kSize; at += 4096) ASSERT_EQ(block->data()[at], block->data()[0]);
}

TEST(LargeMemory, WhatIsLetGoServesTheNextWhoAsks) {
  const AllocationContext of_a_run;
  const AllocationScope scope(&of_a_run, MemoryClass::activations);
  constexpr size_t kSize = (size_t{7} << 20) + 3 * 65'536;
  const std::byte* first = allocate_large(kSize)->data();
  const std::shared_ptr<Storage> second = allocate_large(kSize - 10);
  EXPECT_EQ(second->data(), first);
  give_back_kept_memory();
}

// Takes blocks of different sizes from kept memory and returns them, in any order. No block may need fresh pages from the system.
TEST(LargeMemory, KeptBlocksAreCutAndJoinedAgain) {
  constexpr size_t kPiece = size_t{3} << 20;
  const AllocationContext of_a_run;
  const AllocationScope scope(&of_a_run, MemoryClass::activations);
  give_back_kept_memory();
  const std::byte* const all = allocate_large(4 * kPiece)->data();
  for (const std::array<int, 3> order : {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{1, 2, 0}, std::array{2, 1, 0}}) {
    std::array<std::shared_ptr<Storage>, 3> pieces{allocate_large(kPiece), allocate_large(2 * kPiece), allocate_large(kPiece)};
    EXPECT_EQ(pieces[0]->data(), all);
    EXPECT_EQ(pieces[1]->data(), all + kPiece);
    EXPECT_EQ(pieces[2]->data(), all + 3 * kPiece);
    for (int i : order) pieces[static_cast<size_t>(i)].reset();
    EXPECT_EQ(allocate_large(4 * kPiece)->data(), all);
  }
  give_back_kept_memory();
}

TEST(LargeMemory, WhatIsKeptDoesNotMakeTheProcessLarger) {
  const AllocationContext of_a_run;
  const AllocationScope scope(&of_a_run, MemoryClass::activations);
  const auto resident_bytes = [] {
    long size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return static_cast<size_t>(resident) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  };
  constexpr size_t kMegabyte = size_t{1} << 20;
  give_back_kept_memory();
  const size_t before = resident_bytes();
  for (size_t size : {60 * kMegabyte, 90 * kMegabyte, 20 * kMegabyte, 100 * kMegabyte}) {
    const std::shared_ptr<Storage> storage = allocate_large(size);
    std::memset(storage->data(), 1, size);
    EXPECT_LE(resident_bytes(), before + 101 * kMegabyte);
  }
  give_back_kept_memory();
  EXPECT_LE(resident_bytes(), before + 4 * kMegabyte);
}

TEST(LargeMemory, PackedWeightsHaveTheirPagesFromTheStart) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto pages_of = [&](std::byte* data, size_t size) {
    const size_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
    return std::span(data + before, (size - before) / page * page);
  };
  constexpr int kPopulateWrite = 23;
  std::vector<std::byte> probe(2 * page);
  if (::madvise(pages_of(probe.data(), probe.size()).data(), page, kPopulateWrite) != 0) GTEST_SKIP() << "this system cannot be told";
#ifdef __GLIBC__
  ::malloc_trim(0);  // memory that earlier tests released may have some of its pages, which is taken for all of them
#endif
  const AllocationScope scope(nullptr, MemoryClass::packed);
  std::vector<std::shared_ptr<Storage>> blocks;
  size_t missing = 0;
  for (int i = 0; i < 8; ++i) {
    const auto pages = pages_of(blocks.emplace_back(allocate_large(kMegabyte))->data(), kMegabyte);
    std::vector<unsigned char> are_there(pages.size() / page);
    ASSERT_EQ(::mincore(pages.data(), pages.size(), are_there.data()), 0);
    for (unsigned char is_there : are_there) missing += (is_there & 1U) == 0 ? 1 : 0;
  }
  EXPECT_LT(missing, kMegabyte / page);  // only one block may lack pages: the one that begins in kept memory and ends beyond it
}

TEST(LargeMemory, AClonedTensorHasTheElementsWhereverTheyLay) {
  std::vector<std::byte> bytes(4 * 12 + 1);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const Tensor odd(DType::int32, Shape{3, 4}, Storage::borrow(bytes.data(), bytes.size(), nullptr), 1);
  const Tensor copy = clone_large(odd);
  EXPECT_EQ(copy.shape(), odd.shape());
  EXPECT_EQ(std::memcmp(copy.raw(), bytes.data() + 1, 48), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.raw()) % Storage::kAlignment, 0U);
}

TEST(LargeMemory, WhatTheMachineDoesNotHaveIsAnError) {
  try {
    allocate_large(SIZE_MAX / 2);
    FAIL() << "was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  }
  EXPECT_THROW(allocate_large(SIZE_MAX), Error);
}

}  // namespace
}  // namespace treadle
