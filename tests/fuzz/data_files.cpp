// Fuzzes files of arrays, tables and adapters.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "core/base/crc32.h"
#include "core/files/npy.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/session/models.h"
#include "train/data/safetensors.h"
#include "treadle/adapter.h"
#include "treadle/data.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;
using namespace train;

NamedTensors arrays() {
  NamedTensors made;
  made.emplace("image", Tensor::of<float>({3, 2, 2}, std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  made.emplace("labels", Tensor::of<int64_t>({3}, std::vector<int64_t>{0, 2, 1}));
  made.emplace("flags", Tensor::of<bool>({3}, std::array<bool, 3>{true, false, true}));
  return made;
}

// Reads every byte of the arrays, as training does.
void read_all(const NamedTensors& named) {
  static volatile size_t sum;
  sum = 0;
  for (const auto& [name, tensor] : named) {
    const Tensor dense = tensor.contiguous();
    if (dense.dtype() == DType::string) continue;
    for (size_t i = 0; i < dense.size_bytes(); ++i) sum = sum + std::to_integer<size_t>(dense.raw()[i]);
  }
}

// Uses each array in every way that training offers.
void use_data(const fs::path& file, const NamedTensors& named) {
  read_all(named);
  const std::vector<ValueInfo> inputs{
      {.name = "image", .type = "tensor(float)", .dtype = DType::float32, .shape = {"n", int64_t{2}, int64_t{2}}, .has_rank = true}};
  const OpenedData opened = open_data({.paths = {file.string()}}, inputs, {.dtype = DType::int32});
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < std::min<int64_t>(opened.data->num_samples(), 4); ++i) samples.push_back(i);
  read_all(opened.data->read(samples));
}

std::vector<std::string> npy_files(const fs::path& folder) {
  std::vector<std::string> made;
  for (const auto& [name, tensor] : arrays()) {
    write_npy(folder / "seed", tensor);
    made.push_back(contents_of(folder / "seed"));
  }
  std::string texts = "\x93NUMPY\x01";
  const std::string header = "{'descr': '<U3', 'fortran_order': False, 'shape': (2, 1), }\n";
  texts += std::string(1, '\0') + static_cast<char>(header.size()) + std::string(1, '\0') + header;
  for (const char c : std::string("ab\0xyz", 6)) texts += std::string(1, c) + std::string(3, '\0');
  made.push_back(texts);
  return made;
}

std::string changed_npy(const std::string& seed, Mutator& mutator) {
  std::string bytes = seed;
  const size_t begin = 10, end = bytes.find('}', begin);
  if (end == std::string::npos || mutator.one_in(3)) {
    mutator.change_binary(bytes);
    return bytes;
  }
  std::string header = bytes.substr(begin, end + 1 - begin), rest = bytes.substr(end + 1);
  const size_t size = header.size();
  mutator.change_text(header);
  if (mutator.one_in(2)) header.resize(size, ' ');
  return bytes.substr(0, begin) + header + rest;
}

void use_npy(const fs::path& file, uint64_t) { read_all({{"array", map_npy(file.string())}}); }

// One file of a zip archive.
struct Entry {
  std::string name, contents;
};
std::string archive_of(const std::vector<Entry>& entries) {
  std::string files, directory;
  auto add = [](std::string& to, uint64_t value, size_t size) { to.append(reinterpret_cast<const char*>(&value), size); };
  for (const Entry& entry : entries) {
    const uint32_t crc = crc32<CrcPolynomial::ieee>(std::as_bytes(std::span(entry.contents)));
    const size_t place = files.size();
    auto add_common = [&](std::string& to) {
      add(to, 20, 2), add(to, 0, 2), add(to, 0, 2), add(to, 0, 4), add(to, crc, 4);
      add(to, entry.contents.size(), 4), add(to, entry.contents.size(), 4), add(to, entry.name.size(), 2), add(to, 0, 2);
    };
    add(files, 0x04034b50, 4), add_common(files);
    files += entry.name + entry.contents;
    add(directory, 0x02014b50, 4), add(directory, 20, 2), add_common(directory);
    add(directory, 0, 2), add(directory, 0, 2), add(directory, 0, 2), add(directory, 0, 4), add(directory, place, 4);
    directory += entry.name;
  }
  std::string end;
  add(end, 0x06054b50, 4), add(end, 0, 4), add(end, entries.size(), 2), add(end, entries.size(), 2);
  add(end, directory.size(), 4), add(end, files.size(), 4), add(end, 0, 2);
  return files + directory + end;
}

// Returns parts of archives: for each array, its name, its size and its contents. They are changed first and then made an archive.
std::vector<std::string> npz_parts(const fs::path& folder) {
  std::string all;
  for (const auto& [name, tensor] : arrays()) {
    write_npy(folder / "seed", tensor);
    const std::string contents = contents_of(folder / "seed");
    const uint64_t sizes[] = {name.size(), contents.size()};
    all.append(reinterpret_cast<const char*>(sizes), sizeof sizes).append(name).append(contents);
  }
  return {all};
}

std::string changed_npz(const std::string& seed, Mutator& mutator) {
  std::vector<Entry> entries;
  for (size_t at = 0; at < seed.size();) {
    uint64_t sizes[2];
    std::memcpy(sizes, seed.data() + at, sizeof sizes);
    at += sizeof sizes;
    entries.push_back({seed.substr(at, sizes[0]) + ".npy", seed.substr(at + sizes[0], sizes[1])});
    at += sizes[0] + sizes[1];
  }
  Entry& entry = entries[mutator.below(entries.size())];
  switch (mutator.below(4)) {
    case 0: mutator.change_text(entry.name); break;
    case 1: entry.contents = changed_npy(entry.contents, mutator); break;
    default: break;
  }
  std::string bytes = archive_of(entries);
  if (mutator.one_in(2)) mutator.change_binary(bytes);
  return bytes;
}

void use_npz(const fs::path& file, uint64_t) { use_data(file, read_npz(file.string())); }

std::vector<std::string> safetensors_files(const fs::path&) {
  const NamedTensors tensors = arrays();
  std::string bytes = safetensors_header({{"format", "pt"}}, tensors);
  for (const auto* named : tensors_in_file_order(tensors))
    bytes.append(reinterpret_cast<const char*>(named->second.raw()), named->second.size_bytes());
  return {bytes};
}

std::string changed_safetensors(const std::string& seed, Mutator& mutator) {
  std::string bytes = seed;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (mutator.one_in(4)) {
    mutator.change_binary(bytes);
    return bytes;
  }
  std::string header = bytes.substr(8, length);
  const std::string elements = bytes.substr(8 + length);
  mutator.change_text(header);
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + elements;
}

void use_safetensors(const fs::path& file, uint64_t) { use_data(file, map_safetensors(file.string())); }

std::vector<std::string> tables(const fs::path&) {
  return {"a,b,kind,c\n1, 2.5,\"x, \"\"y\"\"\",+3\n\n-4e1,5,z,6\r\n", "\xEF\xBB\xBFkind,a\n\"two\nlines\",0.5\nx,1e-3\n",
          "a,b,kind\n1,2,0\n3,4,1\n5,6,2\n"};
}

std::string changed_text(const std::string& seed, Mutator& mutator) {
  std::string text = seed;
  mutator.change_text(text);
  return text;
}

void use_table(const fs::path& file, uint64_t number) {
  CsvOptions options{.label = "kind"};
  if (number % 4 == 1) options.features = {"a*"};
  if (number % 4 == 2) options.separator = ';';
  if (number % 4 == 3) options.label.clear();
  const CsvTable table = read_csv(file.string(), options);
  read_all({{"features", table.features}});
}

Tensor range(const Shape& shape) {
  Tensor made(DType::float32, shape);
  for (int64_t i = 0; i < made.num_elements(); ++i) made.data<float>()[i] = static_cast<float>(i % 7);
  return made;
}

std::vector<std::string> adapter_files(const fs::path&) {
  return {Adapter{.adapter_version = 1, .model_version = 2, .parameters = {{"a", range({4, 2})}, {"b", range({2, 4})}}}.to_bytes()};
}

std::string changed_binary(const std::string& seed, Mutator& mutator) {
  std::string bytes = seed;
  mutator.change_binary(bytes);
  return bytes;
}

void use_adapter(const fs::path& file, uint64_t) {
  const auto adapter = std::make_shared<const Adapter>(Adapter::load(file.string()));
  static auto* const session = [] {
    treadle::testing::ModelBuilder b;
    b.input("x", {-1, 4}).input("a", {4, 2}).input("b", {2, 4}).output("y", {-1, 4});
    b.node("MatMul", {"x", "a"}, {"xa"}).node("MatMul", {"xa", "b"}, {"y"});
    SessionOptions options;
    options.intra_op_num_threads = 1;
    return new Session(b.model(), options);
  }();
  RunOptions options;
  options.adapters = {adapter};
  session->run({{"x", range({3, 4})}}, {}, &options);
  (void)adapter->to_bytes();
}

}  // namespace

std::vector<FileKind> data_files() {
  return {{"npy", ".npy", npy_files, changed_npy, use_npy},
          {"npz", ".npz", npz_parts, changed_npz, use_npz},
          {"safetensors", ".safetensors", safetensors_files, changed_safetensors, use_safetensors},
          {"csv", ".csv", tables, changed_text, use_table},
          {"adapter", ".onnx_adapter", adapter_files, changed_binary, use_adapter}};
}

}  // namespace treadle::fuzz
