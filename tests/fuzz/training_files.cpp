// Fuzzes checkpoints, adapters of trainers, and artifacts.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "compiled/checksum.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/train/tiny_network.h"
#include "train/data/safetensors.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;
using namespace train;

std::shared_ptr<Storage> storage_of(const std::string& bytes) {
  auto storage = Storage::allocate(bytes.size());
  std::memcpy(storage->data(), bytes.data(), bytes.size());
  return storage;
}

// Changes a safetensors file: its header as text, or any of its bytes.
std::string changed_safetensors(const std::string& seed, Mutator& mutator) {
  std::string bytes = seed;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (mutator.one_in(4) || length > bytes.size() - 8) {
    mutator.change_binary(bytes);
    return bytes;
  }
  std::string header = bytes.substr(8, length);
  const std::string tensors = bytes.substr(8 + length);
  mutator.change_text(header);
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + tensors;
}

// Corrects the checksum, which is in the header and computed with zeros in its place (src/train/saved/checkpoint.cpp).
std::string changed_checkpoint(const std::string& seed, Mutator& mutator) {
  constexpr std::string_view kBefore = R"({"__metadata__":{"treadle.checksum":")";
  constexpr size_t kAt = 8 + kBefore.size(), kDigits = 16;
  std::string bytes = changed_safetensors(seed, mutator);
  if (mutator.one_in(16)) return bytes;
  try {
    const Safetensors file = parse_safetensors(storage_of(bytes), "changed");
    std::string header = bytes.substr(0, file.data_offset);
    if (header.size() < kAt + kDigits || header.substr(8, kBefore.size()) != kBefore) return bytes;
    header.replace(kAt, kDigits, kDigits, '0');
    std::vector<uint64_t> sums{compiled::checksum(std::as_bytes(std::span(header)))};
    for (const auto* named : tensors_in_file_order(file.tensors))
      sums.push_back(compiled::checksum({named->second.raw(), named->second.size_bytes()}));
    char digits[kDigits + 1];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(compiled::checksum(std::as_bytes(std::span(sums)))));
    bytes.replace(kAt, kDigits, digits);
  } catch (const Error&) {  // a file that cannot be parsed is refused before its checksum is compared
  }
  return bytes;
}

// Returns options of several trainers. They differ in the kinds of options that a checkpoint or adapter must agree with.
std::vector<TrainerOptions> kinds_of_trainers() {
  std::vector<TrainerOptions> kinds;
  kinds.push_back({.learning_rate = 0.1, .momentum = 0.9});
  kinds.push_back({.optimizer = Optimizer::adamw, .learning_rate = 1e-2, .clip_norm = 0.5, .accumulation_steps = 2});
  kinds.push_back({.optimizer = Optimizer::lion, .learning_rate = 1e-2, .lora = {.rank = 2, .alpha = 3.0}});
  kinds.push_back({.learning_rate = 0.05, .ema_decay = 0.9, .session = {.precision = "float16"}});
  for (TrainerOptions& options : kinds) options.session.intra_op_num_threads = 1;
  return kinds;
}

void step(Trainer& trainer) {
  const tiny::Batch batch = tiny::make_batch(4, 1);
  trainer.step(batch.feeds, batch.labels);
}

std::vector<std::string> checkpoints(const fs::path& folder) {
  std::vector<std::string> made;
  for (const TrainerOptions& options : kinds_of_trainers()) {
    Trainer trainer(tiny::tiny_network(), options);
    for (int i = 0; i < 3; ++i) step(trainer);
    trainer.save_checkpoint(folder / "seed", {{"epoch", "3"}});
    made.push_back(contents_of(folder / "seed"));
  }
  return made;
}

// Keeps the trainers between files, since making one takes longer than loading a checkpoint. So a file may meet what another has loaded.
void use_checkpoint(const fs::path& file, uint64_t number) {
  static std::vector<std::unique_ptr<Trainer>>* trainers = nullptr;
  if (trainers == nullptr) {
    trainers = new std::vector<std::unique_ptr<Trainer>>;
    for (const TrainerOptions& options : kinds_of_trainers()) trainers->push_back(std::make_unique<Trainer>(tiny::tiny_network(), options));
  }
  std::string refusal;
  for (const std::unique_ptr<Trainer>& trainer : *trainers) {
    try {
      trainer->load_checkpoint(file.string(), number % 2 == 0 ? CheckpointSettings::same : CheckpointSettings::own);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::internal) throw;
      refusal = error.what();
      continue;
    }
    for (int i = 0; i < 2; ++i) step(*trainer);
    return;
  }
  throw Error(ErrorCode::invalid_model, refusal);
}

std::vector<std::string> adapters(const fs::path& folder) {
  Trainer trainer(tiny::tiny_network(), kinds_of_trainers()[2]);
  step(trainer);
  trainer.save_adapters(folder / "seed");
  return {contents_of(folder / "seed")};
}

void use_adapters(const fs::path& file, uint64_t) {
  static auto* const trainer = new Trainer(tiny::tiny_network(), kinds_of_trainers()[2]);
  trainer->load_adapters(file.string());
  step(*trainer);
}

constexpr const char* kArtifactFiles[] = {"training_model.onnx", "eval_model.onnx", "inference_model.onnx", "optimizer_model.onnx",
                                          "checkpoint.safetensors"};

// Returns a folder as one string: the size of each file in 8 bytes, and then its contents.
std::string packed(const fs::path& folder) {
  std::string all;
  for (const char* name : kArtifactFiles) {
    const std::string contents = fs::exists(folder / name) ? contents_of(folder / name) : "";
    const uint64_t size = contents.size();
    all.append(reinterpret_cast<const char*>(&size), 8).append(contents);
  }
  return all;
}

std::vector<std::string> unpacked(const std::string& all) {
  std::vector<std::string> files;
  for (size_t at = 0; at + 8 <= all.size();) {
    uint64_t size = 0;
    std::memcpy(&size, all.data() + at, 8);
    size = std::min<uint64_t>(size, all.size() - at - 8);
    files.push_back(all.substr(at + 8, size));
    at += 8 + size;
  }
  return files;
}

std::vector<std::string> artifacts(const fs::path& folder) {
  std::vector<std::string> made;
  for (const TrainerOptions& options : kinds_of_trainers()) {
    Trainer trainer(tiny::tiny_network(), options);
    step(trainer);
    fs::remove_all(folder / "artifacts");
    trainer.write_artifacts(folder / "artifacts");
    made.push_back(packed(folder / "artifacts"));
  }
  return made;
}

// Half of the changes are to the description, which is JSON in a field of a protobuf message. The changes keep its size, so that the
// lengths of the messages stay right.
std::string changed_artifacts(const std::string& seed, Mutator& mutator) {
  std::vector<std::string> files = unpacked(seed);
  std::string& file = files[mutator.below(files.size())];
  const size_t begin = file.find("{\"adapters\""), end = begin == std::string::npos ? begin : file.find("treadle", begin);
  if (begin != std::string::npos && mutator.one_in(2)) {
    std::string text = file.substr(begin, end - begin);
    const size_t size = text.size();
    mutator.change_text(text);
    text.resize(size, ' ');
    file.replace(begin, size, text);
  } else {
    mutator.change_binary(file);
  }
  std::string all;
  for (const std::string& each : files) {
    const uint64_t size = each.size();
    all.append(reinterpret_cast<const char*>(&size), 8).append(each);
  }
  return all;
}

void use_artifacts(const fs::path& file, uint64_t) {
  const fs::path folder = file.string() + ".folder";
  fs::create_directories(folder);
  const std::vector<std::string> files = unpacked(contents_of(file));
  for (size_t i = 0; i < std::size(kArtifactFiles); ++i) {
    fs::remove(folder / kArtifactFiles[i]);
    if (i < files.size() && !files[i].empty()) write_contents(folder / kArtifactFiles[i], files[i]);
  }
  SessionOptions session;
  session.intra_op_num_threads = 1;
  Trainer trainer = Trainer::open_artifacts(folder.string(), session);
  const tiny::Batch batch = tiny::make_batch(4, 1);
  for (int i = 0; i < 3; ++i) step(trainer);
  trainer.evaluate(batch.feeds, batch.labels);
  trainer.predict(batch.feeds);
}

}  // namespace

std::vector<FileKind> training_files() {
  return {{"checkpoint", ".safetensors", checkpoints, changed_checkpoint, use_checkpoint},
          {"lora", ".safetensors", adapters, changed_safetensors, use_adapters},
          {"artifacts", ".packed", artifacts, changed_artifacts, use_artifacts}};
}

}  // namespace treadle::fuzz
