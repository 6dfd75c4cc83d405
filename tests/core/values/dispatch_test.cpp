#include "core/values/dispatch.h"

#include <gtest/gtest.h>

namespace treadle {
namespace {

TEST(Dispatch, EveryFixedSizeTypeIsVisitedWithItsOwnType) {
  int visited = 0;
  for (int i = 1; i < kNumDTypes; ++i) {
    auto dtype = static_cast<DType>(i);
    if (dtype == DType::string || is_sub_byte(dtype)) continue;
    visit_dtype<FixedSizeTypes>(dtype, [&]<typename T>() {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(sizeof(T) * 8, bits_of(dtype)) << name_of(dtype);
      ++visited;
    });
    EXPECT_EQ(visit_element_size(dtype, []<typename T>() { return sizeof(T) * 8; }), bits_of(dtype));
  }
  EXPECT_EQ(visited, 20);
}

TEST(Dispatch, AnUnsupportedDtypeIsNamedWithTheSupportedOnes) {
  try {
    visit_dtype<NativeFloatTypes>(DType::int4, []<typename T>() {});
    FAIL() << "int4 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_implemented);
    EXPECT_STREQ(error.what(), "no implementation for int4; there is one for float32, float64");
  }
  EXPECT_THROW(visit_element_size(DType::string, []<typename T>() {}), Error);
}

}  // namespace
}  // namespace treadle
