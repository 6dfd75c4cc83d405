#include "treadle/dlpack.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/values/float_types.h"
#include "treadle/error.h"

namespace treadle {
namespace {

// A managed DLPack tensor as another framework would export it.
template <typename Managed>
struct Foreign {
  Managed managed{};
  std::vector<int64_t> shape, strides;
  int deletions = 0;

  Foreign(void* data, DLDataType dtype, std::vector<int64_t> extents, std::vector<int64_t> steps = {})
      : shape(std::move(extents)), strides(std::move(steps)) {
    managed.dl_tensor = {
        data, {kDLCPU, 0}, static_cast<int32_t>(shape.size()), dtype, shape.data(), strides.empty() ? nullptr : strides.data(), 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->deletions; };
  }
};
using Legacy = Foreign<DLManagedTensor>;
using Versioned = Foreign<DLManagedTensorVersioned>;
constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};

template <typename Fn>
Error error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::ok, "nothing was thrown");
}

TEST(Dlpack, AForeignTensorIsViewedAndReleasedOnce) {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  Legacy foreign(values.data(), kFloat32, {2, 3});
  {
    Tensor tensor = from_dlpack(&foreign.managed), copy = tensor;
    EXPECT_EQ(describe(tensor), "f32[2,3]");
    EXPECT_EQ(tensor.data<float>(), values.data());
    EXPECT_TRUE(tensor.storage()->writable());
    EXPECT_EQ(foreign.deletions, 0);
  }
  EXPECT_EQ(foreign.deletions, 1);
}

TEST(Dlpack, StridesAreHonoured) {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0F);
  Legacy transposed(values.data(), kFloat32, {4, 3}, {1, 4});
  Tensor tensor = from_dlpack(&transposed.managed);
  EXPECT_FALSE(tensor.is_contiguous());
  Tensor dense = tensor.contiguous();
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) EXPECT_EQ(dense.data<float>()[i * 3 + j], static_cast<float>(j * 4 + i));

  Legacy backwards(values.data() + 11, kFloat32, {12}, {-1});
  EXPECT_EQ(from_dlpack(&backwards.managed).contiguous().data<float>()[0], 11.0F);
  Legacy broadcast(values.data() + 5, kFloat32, {3}, {0});
  EXPECT_EQ(from_dlpack(&broadcast.managed).contiguous().data<float>()[2], 5.0F);
  Legacy odd_strides_of_single_rows(values.data(), kFloat32, {1, 3}, {99, 1});
  EXPECT_TRUE(from_dlpack(&odd_strides_of_single_rows.managed).is_contiguous());
}

TEST(Dlpack, TheByteOffsetCounts) {
  std::vector<float> values = {1, 2, 3, 4};
  Legacy foreign(values.data(), kFloat32, {2});
  foreign.managed.dl_tensor.byte_offset = 8;
  EXPECT_EQ(*from_dlpack(&foreign.managed).data<float>(), 3.0F);
}

TEST(Dlpack, EveryDtypeButStringsSurvivesTheRoundTrip) {
  for (int i = 1; i < kNumDTypes; ++i) {
    auto dtype = static_cast<DType>(i);
    if (dtype == DType::string) continue;
    Tensor tensor(dtype, Shape{2, 5});
    auto* exported = to_dlpack_versioned(tensor);
    EXPECT_EQ(exported->dl_tensor.dtype.bits, bits_of(dtype)) << name_of(dtype);
    EXPECT_EQ(exported->version.major, 1U);
    Tensor back = from_dlpack(exported);
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.raw(), tensor.raw());
    EXPECT_EQ(back.shape(), tensor.shape());
  }
  EXPECT_EQ(error_of([] { to_dlpack(Tensor(DType::string, Shape{1})); }).code(), ErrorCode::not_implemented);
}

TEST(Dlpack, TheCodesAreThoseOfTheAbi) {
  auto type_of = [](DType dtype) {
    auto* exported = to_dlpack_versioned(Tensor(dtype, Shape{1}));
    DLDataType type = exported->dl_tensor.dtype;
    exported->deleter(exported);
    return std::vector<int>{type.code, type.bits, type.lanes};
  };
  EXPECT_EQ(type_of(DType::int64), (std::vector<int>{0, 64, 1}));
  EXPECT_EQ(type_of(DType::uint8), (std::vector<int>{1, 8, 1}));
  EXPECT_EQ(type_of(DType::float16), (std::vector<int>{2, 16, 1}));
  EXPECT_EQ(type_of(DType::bfloat16), (std::vector<int>{4, 16, 1}));
  EXPECT_EQ(type_of(DType::complex64), (std::vector<int>{5, 64, 1}));
  EXPECT_EQ(type_of(DType::boolean), (std::vector<int>{6, 8, 1}));
}

TEST(Dlpack, AnExportKeepsItsMemoryAlive) {
  DLManagedTensor* exported = nullptr;
  std::weak_ptr<Storage> storage;
  {
    Tensor tensor = Tensor::scalar(BFloat16(2.5F));
    storage = tensor.storage();
    exported = to_dlpack(tensor);
  }
  ASSERT_FALSE(storage.expired());
  EXPECT_EQ(static_cast<float>(*static_cast<BFloat16*>(exported->dl_tensor.data)), 2.5F);
  EXPECT_EQ(exported->dl_tensor.ndim, 0);
  exported->deleter(exported);
  EXPECT_TRUE(storage.expired());
}

TEST(Dlpack, AStridedTensorIsExportedAsItIs) {
  Tensor base = Tensor::vector<float>(std::vector<float>{0, 1, 2, 3, 4, 5});
  const int64_t strides[] = {1, 2};
  Tensor view(DType::float32, Shape{2, 3}, strides, base.storage(), 0);
  auto* exported = to_dlpack(view);
  EXPECT_EQ(exported->dl_tensor.strides[0], 1);
  EXPECT_EQ(exported->dl_tensor.strides[1], 2);
  exported->deleter(exported);
}

TEST(Dlpack, ReadOnlyMemoryIsMarked) {
  float value = 1;
  Versioned foreign(&value, kFloat32, {1});
  foreign.managed.version = {1, 3};
  foreign.managed.flags = kDLReadOnly;
  Tensor tensor = from_dlpack(&foreign.managed);
  EXPECT_FALSE(tensor.storage()->writable());
  EXPECT_EQ(error_of([&] { to_dlpack(tensor); }).code(), ErrorCode::invalid_argument);
  auto* exported = to_dlpack_versioned(tensor);
  EXPECT_EQ(exported->flags, kDLReadOnly);
  exported->deleter(exported);
}

TEST(Dlpack, WhatCannotBeViewedIsRefusedAndStaysTheCallers) {
  float value = 1;
  Legacy on_device(&value, kFloat32, {1});
  on_device.managed.dl_tensor.device.device_type = kDLCUDA;
  EXPECT_EQ(error_of([&] { from_dlpack(&on_device.managed); }).code(), ErrorCode::not_implemented);
  EXPECT_EQ(on_device.deletions, 0);

  Legacy lanes(&value, {kDLFloat, 32, 4}, {1});
  EXPECT_EQ(error_of([&] { from_dlpack(&lanes.managed); }).message(), "DLPack tensor: 4 lanes an element; only 1 is supported");
  Legacy unknown(&value, {kDLOpaqueHandle, 64, 1}, {1});
  EXPECT_EQ(error_of([&] { from_dlpack(&unknown.managed); }).message(), "DLPack tensor: dtype code 3 with 64 bits");
  Legacy no_data(nullptr, kFloat32, {2});
  EXPECT_EQ(error_of([&] { from_dlpack(&no_data.managed); }).code(), ErrorCode::invalid_argument);
  Legacy negative(&value, kFloat32, {-2});
  EXPECT_NE(error_of([&] { from_dlpack(&negative.managed); }).code(), ErrorCode::ok);
  Legacy misaligned(reinterpret_cast<char*>(&value) + 1, kFloat32, {1});
  EXPECT_EQ(error_of([&] { from_dlpack(&misaligned.managed); }).code(), ErrorCode::invalid_argument);
  Legacy overflowing(&value, kFloat32, {int64_t{1} << 40, 4}, {int64_t{1} << 40, 1});
  EXPECT_EQ(error_of([&] { from_dlpack(&overflowing.managed); }).code(), ErrorCode::resource_exhausted);

  Versioned future(&value, kFloat32, {1});
  future.managed.version = {2, 0};
  EXPECT_EQ(error_of([&] { from_dlpack(&future.managed); }).message(), "DLPack tensor: version 2.0; 1.x is supported");
  EXPECT_EQ(future.deletions, 0);
}

TEST(Dlpack, AnEmptyTensorNeedsNoData) {
  Legacy foreign(nullptr, kFloat32, {0, 3});
  EXPECT_EQ(from_dlpack(&foreign.managed).num_elements(), 0);
}

}  // namespace
}  // namespace treadle
