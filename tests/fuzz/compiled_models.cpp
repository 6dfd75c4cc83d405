// Fuzzes compiled models. A model is split into parts, which are changed and joined again so that header, table and checksums are correct.
#include <cstring>
#include <span>

#include "compiled/checksum.h"
#include "compiled/file.h"
#include "compiled/stream.h"
#include "core/base/checked.h"
#include "graph/op_def.h"
#include "onnx/serialize.h"
#include "tests/fuzz/feeds.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/graphs/generator.h"
#include "tests/session/packing_model.h"
#include "treadle/error.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeaderBytes = 64, kPage = 4096, kLargeBlock = 65'536, kAlignment = 64;
constexpr uint32_t kNumGraphs = 60;
constexpr size_t kMaxSessionBytes = size_t{256} << 20;
constexpr int64_t kDeadlineMs = 1000;

struct Parts {
  std::string before;  // the file's magic number and format version
  std::string identity, key, interface, graph;
  std::vector<std::string> blocks;
};

uint64_t number_at(const std::string& bytes, size_t place) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}
void put(std::string& bytes, size_t place, uint64_t value) { std::memcpy(bytes.data() + place, &value, sizeof value); }
std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

Parts parts_of(const std::string& file) {
  Parts parts{.before = file.substr(0, 16)};
  const std::string description = file.substr(kHeaderBytes, number_at(file, 24));
  parts.graph = description.substr(description.size() - number_at(file, 32));
  compiled::Reader in(as_bytes(description));
  parts.identity = in.text(), parts.key = in.text(), parts.interface = in.bytes();
  for (size_t count = in.count(24); count > 0; --count) {
    const auto offset = in.get<uint64_t>(), size = in.get<uint64_t>();
    in.get<uint64_t>();
    parts.blocks.push_back(file.substr(offset, size));
  }
  return parts;
}

// Joins the parts as compiled::write() does. @param change_table  changes the positions of blocks in the table
template <typename Change>
std::string joined(const Parts& parts, const Change& change_table) {
  compiled::Writer front;
  front.text(parts.identity), front.text(parts.key), front.text(parts.interface);
  front.count(parts.blocks.size());
  std::string description(reinterpret_cast<const char*>(front.bytes().data()), front.bytes().size());
  const size_t table_at = description.size(), table_bytes = parts.blocks.size() * 24;
  const size_t description_bytes = table_at + table_bytes + parts.graph.size();
  std::string table, elements;
  size_t end = kHeaderBytes + description_bytes;
  for (const std::string& block : parts.blocks) {
    const size_t place = align_up(end, block.size() >= kLargeBlock ? kPage : kAlignment);
    elements.append(place - end, '\0').append(block);
    end = place + block.size();
    std::string row(24, '\0');
    put(row, 0, place), put(row, 8, block.size()), put(row, 16, compiled::checksum(as_bytes(block)));
    table += row;
  }
  change_table(table);
  description += table + parts.graph;
  std::string header = parts.before + std::string(kHeaderBytes - 16, '\0');
  put(header, 16, end), put(header, 24, description_bytes), put(header, 32, parts.graph.size());
  put(header, 40, compiled::checksum(as_bytes(description)));
  put(header, 56, compiled::checksum(as_bytes(header.substr(0, 56))));
  return header + description + elements;
}

// Returns names of operators, attributes and kernels.
const std::vector<std::string>& words() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> words{"", "treadle", "ai.onnx.ml", "com.microsoft", "n", "batch"};
    for (const OpDef& op : all_ops()) {
      words.emplace_back(op.name);
      for (const AttributeDef& attribute : op.attributes) words.emplace_back(attribute.name);
      for (const KernelDef& kernel : op.kernels) words.emplace_back(kernel.name);
    }
    return words;
  }();
  return all;
}

std::string changed(const std::string& seed, Mutator& mutator) {
  Parts parts = parts_of(seed);
  bool changes_table = false;
  switch (mutator.below(16)) {
    case 0: changes_table = !parts.blocks.empty(); break;
    case 1: mutator.change_stream(parts.interface, words()); break;
    case 2:
      if (!parts.blocks.empty()) mutator.change_binary(parts.blocks[mutator.below(parts.blocks.size())]);
      break;
    case 3:
      if (parts.blocks.size() > 1)
        std::swap(parts.blocks[mutator.below(parts.blocks.size())], parts.blocks[mutator.below(parts.blocks.size())]);
      break;
    default: mutator.change_stream(parts.graph, words());
  }
  return joined(parts, [&](std::string& table) {
    if (changes_table) mutator.change_stream(table, {}), table.resize(parts.blocks.size() * 24);
  });
}

std::string compiled_bytes(const Model& model, const fs::path& folder, const std::string& precision = {}) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.precision = precision;
  options.compiled_model_filepath = folder / "seed.treadle";
  try {
    const Session writing(model, options);
  } catch (const Error&) {
    return {};
  }
  return contents_of(options.compiled_model_filepath);
}

std::vector<std::string> seeds(const fs::path& folder) {
  std::vector<std::string> made;
  auto add = [&](std::string bytes) {
    if (!bytes.empty()) made.push_back(std::move(bytes));
  };
  for (const char* precision : {"", "bfloat16", "bfloat16x3", "int8_weights"})
    add(compiled_bytes(treadle::testing::packing_model().model(), folder, precision));
  for (uint32_t seed = 1; seed <= kNumGraphs; ++seed) {
    const std::string onnx = onnx::serialize_model(graphs::Generator(seed).generate().model);
    add(compiled_bytes(Model::from_bytes(as_bytes(onnx)), folder));
  }
  return made;
}

void use(const fs::path& file, uint64_t number) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.verify_plans = true;
  options.memory_limit_bytes = kMaxSessionBytes;
  options.share_weights = false;
  const Session session(file.string(), options);
  run_with_random_feeds(session, static_cast<uint32_t>(number), 2, kDeadlineMs);
  session.to_text("planned");
}

}  // namespace

FileKind compiled_models() { return {"compiled", ".treadle", seeds, changed, use}; }

}  // namespace treadle::fuzz
