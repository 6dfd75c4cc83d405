// Checkpoints: safetensors files with a checksum and everything that a trainer needs to continue with identical bits.
#include "train/saved/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "compiled/checksum.h"
#include "core/base/json_depth.h"
#include "core/base/sha1.h"
#include "core/files/file.h"
#include "session/model.h"
#include "train/artifacts/artifact_files.h"
#include "train/data/safetensors.h"
#include "train/graph/data_parallel.h"
#include "train/graph/optimizers.h"
#include "train/options/options.h"
#include "train/trainer/trainer_impl.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr std::string_view kCheckpointFormat = "1";
constexpr std::string_view kParameter = "parameter/", kStatistic = "state/", kOptimizerState = "optimizer/", kOwn = "user.";
// The checksum is the header's first entry. For computing it, its own digits in the header are replaced by zeros.
constexpr std::string_view kBeforeChecksum = R"({"__metadata__":{"treadle.checksum":")";
constexpr size_t kChecksumAt = 8 + kBeforeChecksum.size(), kChecksumDigits = 16;

std::string with_prefix(std::string_view prefix, const std::string& name) { return std::string(prefix) + name; }

std::string checksum_text(std::string header, const NamedTensors& tensors) {
  header.replace(kChecksumAt, kChecksumDigits, kChecksumDigits, '0');
  std::vector<uint64_t> sums{compiled::checksum(std::as_bytes(std::span(header)))};
  for (const auto* named : tensors_in_file_order(tensors))
    sums.push_back(compiled::checksum({named->second.raw(), named->second.size_bytes()}));
  return fmt::format("{:016x}", compiled::checksum(std::as_bytes(std::span(sums))));
}

// Computes a digest of everything in the model that training does not change: nodes, and the weights that are not in the checkpoint.
class Fingerprint {
 public:
  explicit Fingerprint(const NamedTensors& parameters, const NamedTensors& states) : parameters_(parameters), states_(states) {}

  void add(const onnx::GraphDef& graph) {
    for (const onnx::TensorDef& initializer : graph.initializers)
      if (!parameters_.contains(initializer.name) && !states_.contains(initializer.name)) add(initializer);
    for (const onnx::NodeDef& node : graph.nodes) {
      text_ += fmt::format("{}.{}.{}\n", node.domain, node.op_type, node.overload);
      for (const auto* names : {&node.inputs, &node.outputs})
        for (const std::string& name : *names) text_ += name + "\n";
      for (const onnx::AttributeDef& attribute : node.attributes) add(attribute);
    }
  }
  std::string digest() const { return sha1(std::as_bytes(std::span(text_))); }

 private:
  void add(const onnx::TensorDef& def) {
    text_ += fmt::format("{} {}", def.name, static_cast<int>(def.dtype));
    if (def.value.defined() && def.value.dtype() == DType::string) {
      for (const std::string& element : def.value.span<std::string>()) text_ += element + "\n";
    } else if (def.value.defined()) {
      text_ += fmt::format("{} {:x}\n", to_string(def.value.shape()), compiled::checksum({def.value.raw(), def.value.size_bytes()}));
    }
  }
  void add(const onnx::AttributeDef& attribute) {
    text_ += fmt::format("{} {} {} {}", attribute.name, attribute.f, attribute.i, attribute.s);
    for (float value : attribute.floats) text_ += fmt::format(" {}", value);
    for (int64_t value : attribute.ints) text_ += fmt::format(" {}", value);
    for (const std::string& value : attribute.strings) text_ += value + "\n";
    if (attribute.t) add(*attribute.t);
    for (const onnx::TensorDef& tensor : attribute.tensors) add(tensor);
    if (attribute.g) add(*attribute.g);
    for (const onnx::GraphDef& graph : attribute.graphs) add(graph);
  }

  const NamedTensors &parameters_, &states_;
  std::string text_;
};

std::string fingerprint_of(const Trainer& trainer) {
  const NamedTensors parameters = trainer.parameter_views(), states = trainer.state_views();
  Fingerprint fingerprint(parameters, states);
  fingerprint.add(trainer.model().impl().def.graph);
  return fingerprint.digest();
}

std::string encoded(const std::vector<std::pair<std::string, std::string>>& settings) {
  return nlohmann::json(settings).dump();  // a list of pairs rather than an object, because names of groups repeat
}

[[noreturn]] void throw_other(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: the checkpoint is not of this trainer: {}", path, what));
}

// Checkpoints store parameters and averages separately, which is impossible while use_averages(true) has swapped them.
void check_in_training(const Trainer& trainer) {
  if (trainer.averages_used())
    throw Error(ErrorCode::invalid_argument, "a checkpoint while the averages are in the parameters' place; use_averages(false) first");
}

/// Returns the bytes of the checkpoint file. Rank 0 reads it and sends it to all ranks, so that the others need no access to the folder.
std::shared_ptr<Storage> bytes_of_checkpoint(const Trainer& trainer, const std::string& path) {
  Communicator* const ranks = trainer.options().communicator.get();
  if (!ranks) return map_file(path);
  std::shared_ptr<Storage> bytes;
  const std::string size = text_of_rank_0(*ranks, [&] {
    bytes = map_file(path);
    return std::to_string(bytes->size_bytes());
  });
  if (!bytes) bytes = Storage::allocate(std::stoull(size));
  constexpr size_t kPart = size_t{64} << 20;
  Tensor part(DType::uint8, Shape{static_cast<int64_t>(std::min(kPart, bytes->size_bytes()))});
  for (size_t at = 0; at < bytes->size_bytes(); at += kPart) {
    const size_t count = std::min(kPart, bytes->size_bytes() - at);
    // Copies parts of the file, because it is mapped read-only and broadcast() needs writable memory.
    if (writes_files(trainer)) std::memcpy(part.raw(), bytes->data() + at, count);
    ranks->broadcast(part.raw(), count, 0);
    if (!writes_files(trainer)) std::memcpy(bytes->data() + at, part.raw(), count);
  }
  return bytes;
}

class CheckpointReader {
 public:
  CheckpointReader(const std::string& path, const std::shared_ptr<Storage>& bytes) : path_(path) {
    try {
      file_ = parse_safetensors(bytes, path);
    } catch (const Error& error) {  // a file with an unsupported dtype or size is no checkpoint either
      throw Error(ErrorCode::invalid_model, error.what());
    }
    const std::string header(reinterpret_cast<const char*>(bytes->data()), file_.data_offset);
    if (header.size() < kChecksumAt + kChecksumDigits || header.substr(8, kBeforeChecksum.size()) != kBeforeChecksum)
      throw Error(ErrorCode::invalid_model, fmt::format("{}: a safetensors file, but no checkpoint of a trainer", path));
    if (const std::string expected = header.substr(kChecksumAt, kChecksumDigits), sum = checksum_text(header, file_.tensors);
        expected != sum)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("{}: the checkpoint is damaged: its checksum is {}, that of its bytes {}", path, expected, sum));
    if (const std::string& format = text("treadle.checkpoint"); format != kCheckpointFormat)
      throw Error(ErrorCode::not_implemented,
                  fmt::format("{}: a checkpoint of format {}; this build reads {}", path, format, kCheckpointFormat));
  }

  void check(const Trainer& trainer, CheckpointSettings settings) const {
    check_tensors(kParameter, "parameter", trainer.parameter_views());
    check_tensors(kStatistic, "running statistic", trainer.state_views());
    if (text("treadle.model") != fingerprint_of(trainer)) throw_other(path_, "the models' nodes or frozen weights differ");
    check_settings(settings_of(trainer.options()), settings);
    std::set<std::string> others;  // the file may have all ranks' states, not only this rank's
    if (trainer.options().shard_optimizer)
      for (const auto& [name, tensor] : trainer.parameter_views())
        for (const std::string& what : state_names(trainer.options())) others.insert(state_name(name, what));
    check_tensors(kOptimizerState, "state of the optimizer", trainer.optimizer_state(), others);
  }

  TrainerPosition position() const {
    return {number<uint64_t>("treadle.num_steps"), number<int64_t>("treadle.num_updates"), number<int>("treadle.accumulated_steps")};
  }
  double learning_rate() const { return number<double>("treadle.learning_rate"); }
  /// Returns the state of loss scaling; nullopt if the trainer that wrote the file did not scale its loss.
  std::optional<LossScale> loss_scale() const {
    if (!has("treadle.loss_scale")) return std::nullopt;
    return LossScale{number<double>("treadle.loss_scale"), number<int64_t>("treadle.growth_tracker"),
                     number<uint64_t>("treadle.num_skipped")};
  }
  Metadata metadata() const {
    Metadata own;
    for (const auto& [key, value] : file_.metadata)
      if (key.starts_with(kOwn)) own.emplace_back(key.substr(kOwn.size()), value);
    return own;
  }
  void copy_to(std::string_view prefix, const NamedTensors& tensors) const {
    for (const auto& [name, tensor] : tensors) Tensor(tensor).copy_from(file_.tensors.at(with_prefix(prefix, name)));
  }

 private:
  bool has(std::string_view key) const {
    return std::any_of(file_.metadata.begin(), file_.metadata.end(), [&](const auto& each) { return each.first == key; });
  }
  const std::string& text(std::string_view key) const {
    for (const auto& [each, value] : file_.metadata)
      if (each == key) return value;
    throw Error(ErrorCode::invalid_model, fmt::format("{}: the checkpoint has no \"{}\"", path_, key));
  }
  template <typename T>
  T number(std::string_view key) const {
    const std::string& digits = text(key);
    T value{};
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (failure != std::errc() || end != digits.data() + digits.size())
      throw Error(ErrorCode::invalid_model, fmt::format("{}: \"{}\" is \"{}\", which is no number", path_, key, digits));
    return value;
  }

  /// Checks that the file has these tensors. @param elsewhere  names of other tensors that the file may contain.
  void check_tensors(std::string_view prefix, std::string_view what, const NamedTensors& tensors,
                     const std::set<std::string>& elsewhere = {}) const {
    for (const auto& [name, tensor] : tensors) {
      auto found = file_.tensors.find(with_prefix(prefix, name));
      if (found == file_.tensors.end()) throw_other(path_, fmt::format("it has no {} \"{}\"", what, name));
      if (found->second.dtype() != tensor.dtype() || found->second.shape() != tensor.shape())
        throw_other(path_, fmt::format("the {} \"{}\" is {} there, {} here", what, name, describe(found->second), describe(tensor)));
    }
    for (const auto& [name, tensor] : file_.tensors)
      if (name.starts_with(prefix) && !tensors.contains(name.substr(prefix.size())) && !elsewhere.contains(name.substr(prefix.size())))
        throw_other(path_, fmt::format("it has the {} \"{}\", the trainer has not", what, name.substr(prefix.size())));
  }

  void check_settings(const std::vector<std::pair<std::string, std::string>>& here, CheckpointSettings settings) const {
    std::vector<std::pair<std::string, std::string>> there;
    const std::string& settings_text = text("treadle.settings");
    if (!is_shallow_json(settings_text))
      throw Error(ErrorCode::invalid_model, fmt::format("{}: the checkpoint's settings are no list of pairs", path_));
    try {
      there = nlohmann::json::parse(settings_text).get<decltype(there)>();
      // The error's message is not passed on, because it quotes input bytes that may not be UTF-8.
    } catch (const nlohmann::json::parse_error& error) {
      throw Error(ErrorCode::invalid_model, fmt::format("{}: the checkpoint's settings are no JSON at byte {}", path_, error.byte));
    } catch (const nlohmann::json::exception& error) {
      throw Error(ErrorCode::invalid_model, fmt::format("{}: the checkpoint's settings: {}", path_, error.what()));
    }
    auto counts = [&](const std::string& name) { return settings == CheckpointSettings::same || name == "optimizer"; };
    for (size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
      if (i < here.size() && i < there.size() && here[i].first == there[i].first) {
        if (here[i].second != there[i].second && counts(here[i].first))
          throw_other(path_, fmt::format("{} is {} there, {} here", here[i].first, there[i].second, here[i].second));
      } else if (settings == CheckpointSettings::same) {
        const bool is_here = i < here.size();
        throw_other(path_, fmt::format("{} is set {} only", (is_here ? here : there)[i].first, is_here ? "here" : "there"));
      }
    }
  }

  std::string path_;
  Safetensors file_;
};

}  // namespace

bool writes_files(const Trainer& trainer) {
  const auto& communicator = trainer.options().communicator;
  return !communicator || communicator->rank() == 0;
}

NamedTensors checkpoint_tensors(const Trainer& trainer) {
  check_in_training(trainer);
  NamedTensors all;
  const NamedTensors parameters = trainer.parameter_views(), states = trainer.state_views(), kept = trainer.joint_optimizer_state();
  for (const auto& [prefix, tensors] :
       {std::pair{kParameter, &parameters}, std::pair{kStatistic, &states}, std::pair{kOptimizerState, &kept}})
    for (const auto& [name, tensor] : *tensors) all.emplace(with_prefix(prefix, name), tensor.contiguous());
  return all;
}

std::string checkpoint_header(const Trainer& trainer, const NamedTensors& tensors, const Metadata& metadata) {
  const TrainerPosition position = trainer.position();
  Metadata all{{"treadle.checksum", std::string(kChecksumDigits, '0')},
               {"treadle.checkpoint", std::string(kCheckpointFormat)},
               {"treadle.num_steps", std::to_string(position.num_steps)},
               {"treadle.num_updates", std::to_string(position.num_updates)},
               {"treadle.accumulated_steps", std::to_string(position.accumulated_steps)},
               {"treadle.learning_rate", fmt::format("{}", trainer.learning_rate())},
               {"treadle.settings", encoded(settings_of(trainer.options()))},
               {"treadle.model", fingerprint_of(trainer)}};
  if (const std::optional<LossScale> scale = trainer.loss_scale()) {
    all.emplace_back("treadle.loss_scale", fmt::format("{}", scale->scale));
    all.emplace_back("treadle.growth_tracker", std::to_string(scale->growth_tracker));
    all.emplace_back("treadle.num_skipped", std::to_string(scale->num_skipped));
  }
  for (const auto& [key, value] : metadata) all.emplace_back(with_prefix(kOwn, key), value);
  return safetensors_header(all, tensors);
}

void write_checkpoint(const std::string& path, std::string header, const NamedTensors& tensors) {
  header.replace(kChecksumAt, kChecksumDigits, checksum_text(header, tensors));
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const auto* named : tensors_in_file_order(tensors)) file.write({named->second.raw(), named->second.size_bytes()});
  file.commit_durably();
}

void Trainer::save_checkpoint(const std::string& path, const Metadata& metadata) const {
  const NamedTensors tensors = checkpoint_tensors(*this);
  if (!writes_files(*this)) return;
  write_checkpoint(path, checkpoint_header(*this, tensors, metadata), tensors);
}

Metadata Trainer::load_checkpoint(const std::string& path, CheckpointSettings settings) {
  check_in_training(*this);
  const CheckpointReader reader(path, bytes_of_checkpoint(*this, path));
  change([&] {
    reader.check(*this, settings);
    const double before = learning_rate();
    const TrainerPosition position_before = position();
    if (settings == CheckpointSettings::same) set_learning_rate(reader.learning_rate());
    try {
      set_position(reader.position());
      if (std::optional<LossScale> scale = reader.loss_scale(); scale && loss_scale()) {
        if (settings == CheckpointSettings::own) scale->growth_tracker = 0;  // the old count may exceed the new growth interval
        set_loss_scale(*scale);
      }
    } catch (...) {
      set_learning_rate(before), set_position(position_before);
      throw;
    }
    reader.copy_to(kParameter, parameter_views());
    reader.copy_to(kStatistic, state_views());
    reader.copy_to(kOptimizerState, optimizer_state());
    // The file has the accumulated gradients summed over all ranks. Rank 0 continues with this sum; the others start from zero.
    if (!writes_files(*this))
      for (const auto& [name, tensor] : optimizer_state())
        if (name.ends_with(state_name("", kGradient))) std::fill_n(tensor.data<float>(), tensor.num_elements(), 0.0F);
  });
  return reader.metadata();
}

Trainer Trainer::open_artifacts(const std::string& folder, const SessionOptions& session) {
  Trainer trainer(std::make_unique<Impl>(std::make_unique<const Artifacts>(folder, session)));
  trainer.load_checkpoint(artifact_path(folder, kFirstCheckpoint));
  return trainer;
}

}  // namespace treadle::train
