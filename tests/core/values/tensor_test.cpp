#include "treadle/tensor.h"

#include <gtest/gtest.h>
TEST(Tensor, ScalarHoldsItsValue) { EXPECT_EQ(*treadle::Tensor::scalar<float>(2.5F).data<float>(), 2.5F); }
