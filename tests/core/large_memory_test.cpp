#include "core/large_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

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
