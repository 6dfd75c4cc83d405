// Tests tensors in every form in which ONNX stores them. The expected bytes and values are written in this file.
#include <gtest/gtest.h>

#include <cstring>

#include "onnx/parse.h"
#include "tests/onnx/model_difference.h"
#include "tests/onnx/wire_builder.h"

namespace treadle::onnx::test {
namespace {

Tensor parse(const std::string& bytes, const ReadOptions& options = {}) { return parse_tensor_bytes(bytes_of(bytes), options).value; }

/// Parses a tensor whose elements are stored in int32_data (5), int64_data (7) or uint64_data (11).
Tensor from_varints(int data_type, int field, std::initializer_list<int64_t> dims, std::vector<int64_t> values, bool packed = true) {
  return parse(tensor_message(dims, data_type, [&](Writer& w) {
    if (packed)
      w.add_packed_int64(static_cast<uint32_t>(field), values.begin(), values.end());
    else
      for (int64_t value : values) w.add_int64(static_cast<uint32_t>(field), value);
  }));
}

std::string error_of_varints(int data_type, int field, std::initializer_list<int64_t> dims, std::vector<int64_t> values) {
  return error_of([&] { from_varints(data_type, field, dims, std::move(values)); });
}

struct TypedCase {
  DType dtype;
  std::vector<int64_t> values;  // the elements as int32_data stores them
  std::string packed;           // the elements as they are in memory, which are the bytes of raw_data
  int64_t num_elements;
};

// The bit patterns follow from the definitions of the formats: 1.0 is 0x3c00 in float16, 0x3f80 in bfloat16, 0x38 in float8e4m3fn …
std::vector<TypedCase> int32_cases() {
  return {
      {DType::int32, {1, -1, INT32_MIN}, raw_of<int32_t>({1, -1, INT32_MIN}), 3},
      {DType::int16, {1, -1, -32768}, raw_of<int16_t>({1, -1, -32768}), 3},
      {DType::int8, {1, -1, -128}, raw_of<int8_t>({1, -1, -128}), 3},
      {DType::uint16, {1, 65535}, raw_of<uint16_t>({1, 65535}), 2},
      {DType::uint8, {1, 255}, raw_of<uint8_t>({1, 255}), 2},
      {DType::boolean, {1, 0, 1}, raw_of<uint8_t>({1, 0, 1}), 3},
      {DType::float16, {0x3c00, 0xc000}, raw_of<uint16_t>({0x3c00, 0xc000}), 2},
      {DType::bfloat16, {0x3f80, 0xc000}, raw_of<uint16_t>({0x3f80, 0xc000}), 2},
      {DType::float8e4m3fn, {0x38, 0xc0}, raw_of<uint8_t>({0x38, 0xc0}), 2},
      {DType::float8e4m3fnuz, {0x40, 0xc8}, raw_of<uint8_t>({0x40, 0xc8}), 2},
      {DType::float8e5m2, {0x3c, 0xc0}, raw_of<uint8_t>({0x3c, 0xc0}), 2},
      {DType::float8e5m2fnuz, {0x40, 0xc4}, raw_of<uint8_t>({0x40, 0xc4}), 2},
      {DType::float8e8m0, {127, 128}, raw_of<uint8_t>({127, 128}), 2},
      {DType::uint4, {0x21, 0x03}, raw_of<uint8_t>({0x21, 0x03}), 3},
      {DType::int4, {0xf1, 0x08}, raw_of<uint8_t>({0xf1, 0x08}), 3},
      {DType::float4e2m1, {0xa2, 0x07}, raw_of<uint8_t>({0xa2, 0x07}), 3},
      {DType::uint2, {0xe4, 0x01}, raw_of<uint8_t>({0xe4, 0x01}), 5},
      {DType::int2, {0x1b, 0x02}, raw_of<uint8_t>({0x1b, 0x02}), 5},
      // Five 6-bit elements 1, 2, 3, 63, 5 as a bit stream, first element lowest: 000001 000010 000011 111111 000101.
      {DType::float6e2m3, {1, 2, 3, 63, 5}, raw_of<uint8_t>({0x81, 0x30, 0xfc, 0x05}), 5},
      {DType::float6e3m2, {1, 2, 3, 63, 5}, raw_of<uint8_t>({0x81, 0x30, 0xfc, 0x05}), 5},
  };
}

TEST(OnnxParseTensor, DecodesInt32DataOfEveryDtype) {
  for (const TypedCase& c : int32_cases()) {
    for (bool packed : {true, false}) {
      Tensor t = from_varints(static_cast<int>(c.dtype), 5, {c.num_elements}, c.values, packed);
      EXPECT_EQ(t.dtype(), c.dtype);
      EXPECT_EQ(t.shape(), (Shape{c.num_elements}));
      EXPECT_EQ(raw_bytes(t), c.packed) << name_of(c.dtype);
    }
  }
}

TEST(OnnxParseTensor, TakesRawDataOfEveryDtype) {
  auto cases = int32_cases();
  cases.push_back({DType::float32, {}, raw_of({1.f, -0.f, 3e38f}), 3});
  cases.push_back({DType::float64, {}, raw_of({1.0, -2.0}), 2});
  cases.push_back({DType::int64, {}, raw_of<int64_t>({1, INT64_MIN}), 2});
  cases.push_back({DType::uint32, {}, raw_of<uint32_t>({1, UINT32_MAX}), 2});
  cases.push_back({DType::uint64, {}, raw_of<uint64_t>({1, UINT64_MAX}), 2});
  cases.push_back({DType::complex64, {}, raw_of({1.f, 2.f, 3.f, 4.f}), 2});
  cases.push_back({DType::complex128, {}, raw_of({1.0, 2.0, 3.0, 4.0}), 2});
  for (const TypedCase& c : cases) {
    Tensor t = parse(tensor_message({1, c.num_elements}, static_cast<int>(c.dtype), [&](Writer& w) { w.add_bytes(9, c.packed); }));
    EXPECT_EQ(t.dtype(), c.dtype);
    EXPECT_EQ(t.shape(), (Shape{1, c.num_elements}));
    EXPECT_EQ(raw_bytes(t), c.packed) << name_of(c.dtype);
    std::string longer = tensor_message({1, c.num_elements}, static_cast<int>(c.dtype), [&](Writer& w) { w.add_bytes(9, c.packed + "x"); });
    EXPECT_NE(error_of([&] { parse(longer); }).find("bytes of raw_data"), std::string::npos) << name_of(c.dtype);
  }
}

TEST(OnnxParseTensor, DecodesTheOtherTypedFields) {
  auto fixed = [](int type, uint32_t field, std::initializer_list<int64_t> dims, const std::string& packed) {
    return raw_bytes(parse(tensor_message(dims, type, [&](Writer& w) { w.add_bytes(field, packed); })));
  };
  EXPECT_EQ(fixed(1, 4, {2}, raw_of({1.5f, -2.f})), raw_of({1.5f, -2.f}));
  EXPECT_EQ(fixed(14, 4, {1}, raw_of({1.5f, -2.f})), raw_of({1.5f, -2.f}));
  EXPECT_EQ(fixed(11, 10, {2}, raw_of({1.5, -2.0})), raw_of({1.5, -2.0}));
  EXPECT_EQ(fixed(15, 10, {1}, raw_of({1.5, -2.0})), raw_of({1.5, -2.0}));
  EXPECT_EQ(raw_bytes(from_varints(7, 7, {2}, {INT64_MIN, 5})), raw_of<int64_t>({INT64_MIN, 5}));
  EXPECT_EQ(raw_bytes(from_varints(13, 11, {2}, {-1, 5})), raw_of<uint64_t>({UINT64_MAX, 5}));
  EXPECT_EQ(raw_bytes(from_varints(12, 11, {2}, {UINT32_MAX, 5})), raw_of<uint32_t>({UINT32_MAX, 5}));
  Tensor unpacked = parse(tensor_message({2}, 1, [](Writer& w) {
    w.add_float(4, 1);
    w.add_float(4, 2);
  }));
  EXPECT_EQ(raw_bytes(unpacked), raw_of({1.f, 2.f}));
  Tensor strings = parse(tensor_message({2, 1}, 8, [](Writer& w) {
    w.add_bytes(6, "a");
    w.add_bytes(6, "");
  }));
  EXPECT_EQ(strings.data<std::string>()[0] + "|" + strings.data<std::string>()[1], "a|");
}

TEST(OnnxParseTensor, TheOrderOfFieldsDoesNotMatter) {
  Tensor t = parse(message([](Writer& w) {
    w.add_bytes(4, raw_of({1.f, 2.f}));
    w.add_string(8, "late");
    w.add_int64(1, 2);
    w.add_int32(2, 1);
  }));
  EXPECT_EQ(raw_bytes(t), raw_of({1.f, 2.f}));
}

TEST(OnnxParseTensor, RefusesValuesOutsideTheDtype) {
  EXPECT_NE(error_of_varints(3, 5, {2}, {1, 128}).find("the value 128"), std::string::npos);
  EXPECT_NE(error_of_varints(2, 5, {1}, {-1}).find("the value -1"), std::string::npos);
  EXPECT_NE(error_of_varints(5, 5, {1}, {40000}).find("int16"), std::string::npos);
  EXPECT_NE(error_of_varints(10, 5, {1}, {0x10000}).find("float16"), std::string::npos);
  EXPECT_NE(error_of_varints(12, 11, {1}, {int64_t{1} << 32}).find("uint32"), std::string::npos);
  EXPECT_NE(error_of_varints(27, 5, {1}, {64}).find("float6e2m3"), std::string::npos);
}

TEST(OnnxParseTensor, TheNumberOfValuesMustBeThatOfTheShape) {
  EXPECT_NE(error_of_varints(7, 7, {3}, {1, 2}).find("needs 3 values"), std::string::npos);
  EXPECT_NE(error_of_varints(7, 7, {3}, {1000, 2000}).find("has 2 values, its shape needs 3"), std::string::npos);
  EXPECT_NE(error_of_varints(7, 7, {1}, {1, 2}).find("more values than the 1"), std::string::npos);
  EXPECT_NE(error_of([] { parse(tensor_message({2}, 8, [](Writer& w) { w.add_bytes(6, "one"); })); }).find("needs 2"), std::string::npos);
  EXPECT_NE(error_of([] { parse(tensor_message({2}, 1, [](Writer&) {})); }), "no error");
  EXPECT_EQ(parse(tensor_message({0, 3}, 1, [](Writer&) {})).shape(), (Shape{0, 3}));
  EXPECT_EQ(parse(tensor_message({0}, 8, [](Writer&) {})).num_elements(), 0);
  EXPECT_EQ(from_varints(7, 7, {}, {5}).shape().rank(), 0);
}

TEST(OnnxParseTensor, HugeShapesAreRefusedBeforeAnythingIsAllocated) {
  EXPECT_NE(error_of_varints(6, 5, {int64_t{1} << 50}, {1}).find("there are at most 1"), std::string::npos);
  EXPECT_EQ(code_of([] { from_varints(6, 5, {int64_t{1} << 40, int64_t{1} << 40}, {1}); }), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of([] { from_varints(7, 7, {int64_t{1} << 62}, {1}); }), ErrorCode::resource_exhausted);
  std::string small = tensor_message({4}, 1, [](Writer& w) { w.add_bytes(9, std::string(16, 0)); });
  EXPECT_EQ(code_of([&] { parse(small, {.max_tensor_bytes = 15}); }), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of([&] { parse(small, {.max_tensor_bytes = 16}); }), ErrorCode::ok);
}

TEST(OnnxParseTensor, RefusesWhatNoTensorCanBe) {
  EXPECT_NE(error_of_varints(7, 7, {-1}, {1}).find("a negative dimension, -1"), std::string::npos);
  EXPECT_NE(error_of_varints(0, 7, {1}, {1}).find("without an element type"), std::string::npos);
  EXPECT_EQ(code_of([] { from_varints(99, 7, {1}, {1}); }), ErrorCode::not_implemented);
  EXPECT_EQ(code_of([] { from_varints(-3, 7, {1}, {1}); }), ErrorCode::invalid_model);
  EXPECT_EQ(code_of([] { from_varints(7, 7, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1}); }), ErrorCode::not_implemented);
  EXPECT_NE(error_of_varints(1, 7, {1}, {1}).find("belong into float_data"), std::string::npos);
  EXPECT_NE(error_of([] { parse(tensor_message({1}, 8, [](Writer& w) { w.add_bytes(9, "x"); })); }).find("strings in raw_data"),
            std::string::npos);
  std::string both = tensor_message({1}, 1, [](Writer& w) {
    w.add_bytes(4, raw_of({1.f}));
    w.add_bytes(9, raw_of({1.f}));
  });
  EXPECT_NE(error_of([&] { parse(both); }).find("both in float_data and in raw_data"), std::string::npos);
  std::string segment = tensor_message({1}, 1, [](Writer& w) { w.add_message(3, message([](Writer& s) { s.add_int64(1, 0); })); });
  EXPECT_EQ(code_of([&] { parse(segment); }), ErrorCode::not_implemented);
  std::string ragged = tensor_message({1}, 1, [](Writer& w) { w.add_bytes(4, "12345"); });
  EXPECT_NE(error_of([&] { parse(ragged); }).find("not a multiple of 4"), std::string::npos);
}

TEST(OnnxParseTensor, BooleansBecomeZeroOrOne) {
  EXPECT_EQ(raw_bytes(parse(tensor_message({3}, 9, [](Writer& w) { w.add_bytes(9, std::string("\x02\x00\xff", 3)); }))),
            std::string("\1\0\1", 3));
}

/// Returns a model with one initializer of `count` bytes of a dtype of 8 bytes, stored in `field`. Its data begins at `residue` modulo 8.
std::shared_ptr<Storage> model_in_storage(int data_type, uint32_t field, size_t count, size_t residue, size_t& size) {
  for (size_t padding = 1;; ++padding) {
    std::string data(count, '\x5a');
    std::string bytes = model_message(message([&](Writer& g) {
      g.add_string(2, std::string(padding, 'p'));
      g.add_message(5, tensor_message({static_cast<int64_t>(count / 8)}, data_type, [&](Writer& w) { w.add_bytes(field, data); }));
    }));
    if (bytes.find(data) % 8 != residue) continue;
    auto storage = Storage::allocate(bytes.size());
    std::memcpy(storage->data(), bytes.data(), bytes.size());
    size = bytes.size();
    return storage;
  }
}

TEST(OnnxParseTensor, LargeAlignedDataStaysInPlaceAndTheRestIsCopied) {
  auto in_place = [](int data_type, uint32_t field, size_t count, size_t residue, bool with_owner) {
    size_t size = 0;
    auto file = model_in_storage(data_type, field, count, residue, size);
    ModelDef model = parse_model_bytes({file->data(), size}, with_owner ? file : nullptr, {});
    const Tensor& value = model.graph.initializers.at(0).value;
    EXPECT_EQ(raw_bytes(value), std::string(count, '\x5a'));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(value.raw()) % (data_type == 14 ? 4 : 8), 0U);
    return value.storage() == file;
  };
  // The pairs are int64 in raw_data, float64 in double_data, and complex64 in float_data.
  const std::pair<int, uint32_t> forms[] = {{7, 9}, {11, 10}, {14, 4}};
  for (const auto& [data_type, field] : forms) {
    EXPECT_TRUE(in_place(data_type, field, 4096, 0, true)) << field;
    EXPECT_EQ(in_place(data_type, field, 4096, 4, true), data_type == 14) << field;  // other dtypes need an aligned address
    EXPECT_FALSE(in_place(data_type, field, 4096, 0, false)) << field;  // without a storage, nothing would keep the bytes alive
    EXPECT_FALSE(in_place(data_type, field, 64, 0, true)) << field;     // the tensor is too small to keep the file open for it
  }
}

std::string sparse(std::initializer_list<int64_t> dims, int64_t nnz, std::initializer_list<int64_t> index_shape,
                   std::vector<int64_t> indices) {
  std::string bytes = message([&](Writer& s) {
    s.add_message(1, tensor_message({nnz}, 1, [&](Writer& t) { t.add_bytes(9, std::string(static_cast<size_t>(nnz) * 4, 0)); }));
    s.add_message(2, tensor_message(index_shape, 7, [&](Writer& t) { t.add_packed_int64(7, indices.begin(), indices.end()); }));
    for (int64_t dim : dims) s.add_int64(3, dim);
  });
  return error_of([&] { parse_model_bytes(bytes_of(model_message(message([&](Writer& g) { g.add_message(15, bytes); }))), nullptr, {}); });
}

TEST(OnnxParseTensor, SparseIndicesMustBeInsideAndDiffer) {
  EXPECT_EQ(sparse({3, 4}, 2, {2}, {1, 11}), "no error");
  EXPECT_EQ(sparse({3, 4}, 2, {2, 2}, {0, 3, 2, 0}), "no error");
  EXPECT_EQ(sparse({3, 4}, 0, {0}, {}), "no error");
  EXPECT_NE(sparse({3, 4}, 2, {2}, {1, 12}).find("12 of 12 elements"), std::string::npos);
  EXPECT_NE(sparse({3, 4}, 2, {2}, {-1, 2}), "no error");
  EXPECT_NE(sparse({3, 4}, 2, {2, 2}, {0, 4, 2, 0}).find("is 4 on axis 1 of extent 4"), std::string::npos);
  EXPECT_NE(sparse({3, 4}, 2, {2}, {2, 2}).find("two values for its element 2"), std::string::npos);
  EXPECT_EQ(sparse({3, 4}, 2, {2}, {5, 2}), "no error");  // any order is valid, as for onnxruntime
  EXPECT_NE(sparse({3, 4}, 2, {3}, {1, 2, 3}).find("have the shape [3]"), std::string::npos);
  EXPECT_NE(sparse({}, 1, {1}, {0}).find("without dimensions"), std::string::npos);
  EXPECT_NE(sparse({int64_t{1} << 62, 8}, 1, {1}, {0}).find("overflow"), std::string::npos);
  EXPECT_NE(sparse({0, int64_t{1} << 62, 8}, 1, {1, 3}, {0, 1, 1}).find("overflow"), std::string::npos);
  EXPECT_NE(sparse({0, 4, 8}, 1, {1, 3}, {0, 1, 1}).find("no elements"), std::string::npos);
}

}  // namespace
}  // namespace treadle::onnx::test
