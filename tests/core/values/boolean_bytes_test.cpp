#include "core/values/boolean_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace treadle {
namespace {

Tensor booleans(std::vector<uint8_t> bytes) {
  Tensor made(DType::boolean, {static_cast<int64_t>(bytes.size())});
  std::memcpy(made.raw(), bytes.data(), bytes.size());
  return made;
}
std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.raw());
  return {first, first + tensor.num_elements()};
}

TEST(BooleanBytes, ValidOnesStayWhereTheyAre) {
  for (size_t count : {0, 1, 7, 8, 9, 40}) {
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = i % 3 == 0;
    const Tensor tensor = booleans(bytes);
    EXPECT_EQ(with_valid_booleans(tensor).raw(), tensor.raw());
  }
  Tensor numbers(DType::uint8, {1});
  *reinterpret_cast<uint8_t*>(numbers.raw()) = 7;
  EXPECT_EQ(with_valid_booleans(numbers).raw(), numbers.raw());
}

TEST(BooleanBytes, OthersBecomeOneInACopy) {
  for (size_t count : {1, 8, 9, 23})
    for (size_t at = 0; at < count; ++at)
      for (uint8_t value : {2, 128, 255}) {
        std::vector<uint8_t> bytes(count);
        bytes[at] = value;
        const Tensor tensor = booleans(bytes), valid = with_valid_booleans(tensor);
        EXPECT_EQ(bytes_of(tensor), bytes);
        bytes[at] = 1;
        EXPECT_EQ(bytes_of(valid), bytes);
      }
}

TEST(BooleanBytes, OfSequencesOptionalsAndSparseTensors) {
  const Tensor bad = booleans({2, 0});
  const std::vector<uint8_t> good{1, 0};
  const Datum sequence = with_valid_booleans(Sequence{DType::boolean, {bad, bad}});
  EXPECT_EQ(bytes_of(sequence.sequence().elements[1].tensor()), good);
  EXPECT_EQ(bytes_of(with_valid_booleans(Optional{std::make_shared<Datum>(bad)}).optional().value->tensor()), good);
  SparseTensor sparse;
  sparse.values = bad;
  EXPECT_EQ(bytes_of(with_valid_booleans(sparse).sparse_tensor().values), good);
}

}  // namespace
}  // namespace treadle
