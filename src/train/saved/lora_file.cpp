// Saves LoRA adapters to separate files in PEFT's format, and loads them.
#include <fmt/format.h>

#include "core/files/file.h"
#include "train/data/safetensors.h"
#include "train/graph/lora.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr std::string_view kRank = "lora_rank", kAlpha = "lora_alpha";
constexpr std::string_view kPeftPrefix = "base_model.model.";

std::string alpha_text(const LoraOptions& lora) { return fmt::format("{}", factor_of(lora) * static_cast<double>(lora.rank)); }

/// Returns the A and B tensors of the trainer's adapters, by name.
NamedTensors adapters_of(const Trainer& trainer) {
  if (trainer.options().lora.rank == 0)
    throw Error(ErrorCode::invalid_argument, "the trainer has no adapters: it was made without a lora_rank");
  NamedTensors found;
  for (const auto& [name, tensor] : trainer.parameters())
    if (name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")) found.emplace(name, tensor);
  return found;
}

[[noreturn]] void refuse_adapters(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: the adapters are not of this trainer: {}", path, what));
}

}  // namespace

void Trainer::save_adapters(const std::string& path) const {
  const NamedTensors tensors = adapters_of(*this);
  const LoraOptions& lora = options().lora;
  const Metadata metadata{{std::string(kRank), std::to_string(lora.rank)}, {std::string(kAlpha), alpha_text(lora)}, {"format", "pt"}};
  AtomicFile file(path);
  const std::string header = safetensors_header(metadata, tensors);
  file.write(std::as_bytes(std::span(header)));
  for (const auto* named : tensors_in_file_order(tensors)) file.write({named->second.raw(), named->second.size_bytes()});
  file.commit_durably();
}

void Trainer::load_adapters(const std::string& path) {
  const NamedTensors here = adapters_of(*this);
  const Safetensors file = parse_safetensors(map_file(path), path);
  for (const auto& [key, value] : file.metadata)
    if (key == kAlpha && value != alpha_text(options().lora))
      refuse_adapters(path, fmt::format("alpha is {} there, {} here", value, alpha_text(options().lora)));
  NamedTensors there;
  for (const auto& [name, tensor] : file.tensors)
    there.emplace(name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name, tensor);
  for (const auto& [name, tensor] : here) {
    const auto found = there.find(name);
    if (found == there.end()) refuse_adapters(path, fmt::format("the file has no \"{}\"", name));
    if (found->second.dtype() != tensor.dtype() || found->second.shape() != tensor.shape())
      refuse_adapters(path, fmt::format("\"{}\" is {} there, {} here", name, describe(found->second), describe(tensor)));
  }
  for (const auto& [name, tensor] : there)
    if (!here.contains(name)) refuse_adapters(path, fmt::format("the trainer has no \"{}\"", name));
  change([&] {
    for (const auto& [name, tensor] : here) Tensor(tensor).copy_from(there.at(name));
  });
}

}  // namespace treadle::train
