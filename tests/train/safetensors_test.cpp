#include "train/data/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "treadle/error.h"

namespace treadle::train {
namespace {

std::shared_ptr<Storage> file_of(const std::string& header, size_t data_bytes) {
  auto file = Storage::allocate(8 + header.size() + data_bytes);
  std::memset(file->data(), 0, file->size_bytes());
  for (size_t i = 0; i < 8; ++i) file->data()[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xFF);
  std::memcpy(file->data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) file->data()[8 + header.size() + i] = static_cast<std::byte>(i);
  return file;
}

std::string failure_of(const std::string& header, size_t data_bytes) {
  try {
    parse_safetensors(file_of(header, data_bytes), "file");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const NamedTensors tensors{{"bytes", Tensor::of<uint8_t>({3}, std::vector<uint8_t>{1, 2, 3})},
                             {"empty", Tensor(DType::float32, {0, 4})},
                             {"number", Tensor::scalar(7.5)},
                             {"rows", Tensor::of<float>({2, 2}, std::vector<float>{1, 2, 3, std::numeric_limits<float>::infinity()})}};
  const std::string header = safetensors_header({{"key", "a \"quoted\" ü"}}, tensors);
  EXPECT_EQ(header.size() % 64, 0U);
  std::string bytes = header;
  for (const auto* named : tensors_in_file_order(tensors))
    bytes.append(reinterpret_cast<const char*>(named->second.raw()), named->second.size_bytes());
  const auto file = Storage::allocate(bytes.size());
  std::memcpy(file->data(), bytes.data(), bytes.size());
  const Safetensors read = parse_safetensors(file, "file");
  EXPECT_EQ(read.metadata, (Metadata{{"key", "a \"quoted\" ü"}}));
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor& same = read.tensors.at(name);
    EXPECT_EQ(describe(same), describe(tensor)) << name;
    EXPECT_EQ(tensor.size_bytes() ? std::memcmp(same.raw(), tensor.raw(), tensor.size_bytes()) : 0, 0) << name;
  }
}

TEST(Safetensors, TensorsAtOddAddressesAreCopied) {
  const Safetensors read = parse_safetensors(
      file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I16","shape":[2],"data_offsets":[1,5]}})", 5), "file");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read.tensors.at("b").raw()) % 2, 0U);
  EXPECT_EQ(read.tensors.at("b").data<int16_t>()[0], 0x0201);
}

TEST(Safetensors, WhatTheFormatForbidsIsRefused) {
  const std::tuple<const char*, size_t, const char*> cases[] = {
      {R"()", 0, "does not begin with {"},
      {R"([1])", 0, "does not begin with {"},
      {R"({"a":)", 0, "no JSON"},
      {R"({"a":1e400})", 0, "no JSON"},
      {R"({"a":1})", 0, "has not just dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "has not just"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two numbers"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "no unsigned integer"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "no unsigned integer"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "extent"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", 4, "overflow"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "more than 12 extents"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "has the dtype"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "takes 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "takes 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "the tensors take 4 bytes, the file has 8"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 0, "the file has 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "begins at 4, the one before it ends at 0"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6, "begins at 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "twice"},
      {R"({"__metadata__":{"a":1}})", 0, "no text"},
      {R"({"__metadata__":[]})", 0, "no object"},
  };
  for (const auto& [header, data_bytes, expected] : cases)
    EXPECT_NE(failure_of(header, data_bytes).find(expected), std::string::npos) << header << "\n" << failure_of(header, data_bytes);
}

TEST(Safetensors, ListsThatLieTooDeepInListsAreRefused) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& header :
       {R"({"a":{"dtype":"F32","shape":[)" + deep + R"(],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":)" + deep + R"(,"shape":[1],"data_offsets":[0,4]}})", R"({"__metadata__":{"a":)" + deep + "}}"})
    EXPECT_NE(failure_of(header, 4).find("too deep"), std::string::npos);
}

TEST(Safetensors, LengthsBeyondTheFileAreRefused) {
  for (const size_t size : {0U, 7U, 8U, 20U}) {
    const auto file = Storage::allocate(size);
    std::memset(file->data(), 0xFF, size);
    EXPECT_THROW(parse_safetensors(file, "file"), Error) << size;
  }
}

}  // namespace
}  // namespace treadle::train
