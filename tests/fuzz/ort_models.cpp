// Fuzzes models in ONNX Runtime's format. They have no checksum, so the reader sees every changed byte.
#include <array>

#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "tests/fuzz/feeds.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/graphs/generator.h"
#include "tests/onnx/full_model.h"
#include "tests/onnx/ort_writer.h"
#include "treadle/session.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kNumGraphs = 60;
constexpr size_t kMaxSessionBytes = size_t{256} << 20;
constexpr int64_t kDeadlineMs = 1000;

std::string ort_of(const onnx::ModelDef& model) { return onnx::test::OrtWriter::write(model); }

std::vector<std::string> seeds(const fs::path&) {
  std::vector<std::string> made;
  const std::string full = onnx::test::full_model();
  onnx::ModelDef model = onnx::parse_model_bytes(std::as_bytes(std::span(full)), nullptr, {});
  for (onnx::AttributeDef& attribute : model.graph.nodes[0].attributes)  // replaces types of attributes that the format lacks
    if (attribute.type > onnx::AttributeType::graphs) attribute.type = onnx::AttributeType::i;
  made.push_back(ort_of(model));
  for (uint32_t seed = 1; seed <= kNumGraphs; ++seed) made.push_back(ort_of(graphs::Generator(seed).generate().model));
  return made;
}

std::string changed(const std::string& seed, Mutator& mutator) {
  std::string bytes = seed;
  if (mutator.one_in(2)) mutator.change_binary(bytes);
  // Changes offsets and counts, which are aligned numbers of 4 bytes, so that they refer to other data.
  for (size_t count = mutator.below(4); count > 0; --count) {
    const size_t at = mutator.below(bytes.size() / 4) * 4;
    uint32_t number = 0;
    if (at + sizeof number > bytes.size()) continue;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    switch (mutator.below(4)) {
      case 0: number += static_cast<uint32_t>(4 * mutator.below(64)); break;
      case 1: number -= static_cast<uint32_t>(4 * mutator.below(64)); break;
      case 2: number = static_cast<uint32_t>(mutator.below(bytes.size())); break;
      default: number = static_cast<uint32_t>(mutator.hard_number()); break;
    }
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  return bytes;
}

void use(const fs::path& file, uint64_t number) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.memory_limit_bytes = kMaxSessionBytes;
  options.share_weights = false;
  const Session session(file.string(), options);
  run_with_random_feeds(session, static_cast<uint32_t>(number), 1, kDeadlineMs);
}

}  // namespace

FileKind ort_models() { return {"ort", ".ort", seeds, changed, use}; }

}  // namespace treadle::fuzz
