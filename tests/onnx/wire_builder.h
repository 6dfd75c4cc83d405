// Builds protobuf messages for tests with protozero's writer, without the reader or writer under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <protozero/pbf_writer.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::onnx::test {

using Writer = protozero::pbf_writer;

/// Encodes one message: `message([](Writer& w) { w.add_string(1, "x"); })`.
template <typename Body>
std::string message(Body body) {
  std::string bytes;
  Writer writer(bytes);
  body(writer);
  return bytes;
}

inline std::span<const std::byte> bytes_of(std::string_view text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

inline std::string raw_bytes(const Tensor& tensor) { return {reinterpret_cast<const char*>(tensor.raw()), tensor.size_bytes()}; }

template <typename T>
std::string raw_of(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  return bytes;
}

/// Encodes a TensorProto with `dims` and `data_type`; `body` adds the elements.
template <typename Body>
std::string tensor_message(std::initializer_list<int64_t> dims, int data_type, Body body, const std::string& name = "t") {
  return message([&](Writer& w) {
    for (int64_t dim : dims) w.add_int64(1, dim);
    w.add_int32(2, data_type);
    w.add_string(8, name);
    body(w);
  });
}

/// Encodes a StringStringEntryProto.
inline std::string entry(const std::string& key, const std::string& value) {
  return message([&](Writer& w) {
    w.add_string(1, key);
    w.add_string(2, value);
  });
}

/// Encodes a ModelProto of IR version 8 and opset 17 that contains the given GraphProto.
inline std::string model_message(const std::string& graph) {
  return message([&](Writer& w) {
    w.add_int64(1, 8);
    w.add_message(7, graph);
    w.add_message(8, message([](Writer& o) {
                    o.add_string(1, "");
                    o.add_int64(2, 17);
                  }));
  });
}

/// Encodes a model whose graph is one node "n" of the operator Op with one attribute.
inline std::string model_with_attribute(const std::string& attribute) {
  return model_message(message([&](Writer& g) {
    g.add_message(1, message([&](Writer& n) {
                    n.add_string(3, "n");
                    n.add_string(4, "Op");
                    n.add_message(5, attribute);
                  }));
  }));
}

/// A new folder for a test, removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "treadle-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return file(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t num_files() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace treadle::onnx::test
