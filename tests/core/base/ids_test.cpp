#include "core/base/ids.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "exec/program/ids.h"

namespace treadle {
namespace {

using exec::InstructionId;
using exec::SlotId;

template <typename Container, typename Index>
constexpr bool kTakes = requires(Container container, Index index) { container[index]; };
template <typename A, typename B>
constexpr bool kCompares = requires(A a, B b) { a < b; };

static_assert(kTakes<IdVector<SlotId, int>, SlotId>);
static_assert(!kTakes<IdVector<SlotId, int>, InstructionId>);
static_assert(!kTakes<IdVector<SlotId, int>, size_t>);
static_assert(!kTakes<IdVector<SlotId, int>, int32_t>);
static_assert(kTakes<IdSpan<SlotId, const int>, SlotId>);
static_assert(!kTakes<IdSpan<SlotId, const int>, InstructionId>);
static_assert(!kTakes<IdSpan<SlotId, const int>, size_t>);
static_assert(!kCompares<SlotId, InstructionId> && !kCompares<SlotId, int>);
static_assert(std::is_convertible_v<const IdVector<SlotId, int>&, IdSpan<SlotId, const int>>);
static_assert(!std::is_convertible_v<const IdVector<SlotId, int>&, IdSpan<InstructionId, const int>>);
static_assert(!std::is_convertible_v<std::vector<int>, IdVector<SlotId, int>>);
static_assert(sizeof(SlotId) == 4 && sizeof(IdSpan<SlotId, int>) == sizeof(std::span<int>));

TEST(Ids, AContainerIsWalkedInBothDirections) {
  IdVector<SlotId, int> numbers;
  EXPECT_EQ(index_of(numbers.next_id()), 0U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(index_of(numbers.add(10 * i)), static_cast<size_t>(i));
  std::vector<int> forward, backward;
  for (SlotId id : numbers.ids()) forward.push_back(numbers[id]);
  for (SlotId id : numbers.ids().reversed()) backward.push_back(numbers[id]);
  EXPECT_EQ(forward, (std::vector<int>{0, 10, 20, 30}));
  EXPECT_EQ(backward, (std::vector<int>{30, 20, 10, 0}));
  for (SlotId id : IdVector<SlotId, int>().ids()) FAIL() << index_of(id);
  for (SlotId id : IdVector<SlotId, int>().ids().reversed()) FAIL() << index_of(id);
}

TEST(Ids, AnElementKnowsItsId) {
  IdVector<SlotId, int> numbers(3, 7);
  const IdSpan<SlotId, const int> span = numbers;
  EXPECT_EQ(span.id_of(span[SlotId{2}]), SlotId{2});
  EXPECT_EQ(numbers.id_of(numbers[SlotId{1}]), SlotId{1});
  const IdSpan<SlotId, int> writable = numbers;
  writable[SlotId{1}] = 8;
  EXPECT_EQ(numbers, (IdVector<SlotId, int>{7, 8, 7}));
  EXPECT_LT(exec::kNoSlot, SlotId{0});
}

}  // namespace
}  // namespace treadle
