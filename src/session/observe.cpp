#include "session/observe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <thread>
#include <type_traits>

#include "core/base/pattern.h"
#include "core/devices/device.h"
#include "core/files/file.h"
#include "core/values/allocation.h"
#include "onnx/serialize.h"
#include "treadle/error.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace treadle {
namespace {

uint64_t thread_id() {
#if defined(__linux__)
  thread_local const auto id = static_cast<uint64_t>(syscall(SYS_gettid));
  return id;
#else
  return std::hash<std::thread::id>{}(std::this_thread::get_id());
#endif
}

enum class Finding { finite, infinite, nan };

// Classifies a floating-point number by its bits: if the exponent is all ones, it is infinity (fraction 0) or NaN.
template <typename Bits>
Finding classify(Bits bits, Bits exponent, Bits fraction) {
  if ((bits & exponent) != exponent) return Finding::finite;
  return (bits & fraction) != 0 ? Finding::nan : Finding::infinite;
}

template <typename Bits>
int64_t find(const Tensor& tensor, Bits exponent, Bits fraction, bool infinity_too, Finding& finding) {
  // Checks whole blocks first in a loop that the compiler vectorizes: without the sign bit, infinities and NaNs compare greater than all
  // finite numbers.
  using Signed = std::make_signed_t<Bits>;
  constexpr int64_t kBlock = 64;
  const auto most = static_cast<Signed>(infinity_too ? exponent - 1 : exponent), magnitude = static_cast<Signed>(exponent | fraction);
  int64_t first = 0;
  for (; first + kBlock <= tensor.num_elements(); first += kBlock) {
    Signed block[kBlock];
    std::memcpy(block, tensor.raw() + static_cast<size_t>(first) * sizeof(Bits), sizeof block);
    Signed above = 0;
    for (Signed bits : block) above = static_cast<Signed>(above | ((bits & magnitude) > most ? 1 : 0));
    if (above) break;
  }
  for (int64_t i = first; i < tensor.num_elements(); ++i) {
    Bits bits;
    std::memcpy(&bits, tensor.raw() + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    finding = classify<Bits>(bits, exponent, fraction);
    if (finding == Finding::nan || (finding == Finding::infinite && infinity_too)) return i;
  }
  return -1;
}

// Returns the index of the first element that is not finite; -1 if there is none, or if the dtype is not a floating-point type of 16 bits
// or more.
int64_t first_bad(const Tensor& tensor, bool infinity_too, Finding& finding) {
  switch (tensor.dtype()) {
    case DType::float32: return find<uint32_t>(tensor, 0x7F800000U, 0x007FFFFFU, infinity_too, finding);
    case DType::float64: return find<uint64_t>(tensor, 0x7FF0000000000000U, 0x000FFFFFFFFFFFFFU, infinity_too, finding);
    case DType::float16: return find<uint16_t>(tensor, 0x7C00U, 0x03FFU, infinity_too, finding);
    case DType::bfloat16: return find<uint16_t>(tensor, 0x7F80U, 0x007FU, infinity_too, finding);
    default: return -1;
  }
}

std::string position_text(int64_t index, const Shape& shape) {
  std::string text;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    text = fmt::format("{}{}{}", index % shape[axis], text.empty() ? "" : ",", text);
    index /= shape[axis];
  }
  return "[" + text + "]";
}

std::string file_name(std::string name) {
  for (char& c : name)
    if (c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20) c = '_';
  return name.substr(0, 128);
}

}  // namespace

RunObserver::RunObserver(const Executable& executable, const RunOptions* options, const Monitor* monitor, uint64_t run_id,
                         const AllocationContext& memory)
    : executable_(executable), options_(options), monitor_(monitor), run_id_(run_id), memory_(memory) {
  metadata_.run_id = run_id;
  metadata_.graph_id = executable.id;
}

int64_t RunObserver::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
}

void RunObserver::ready(const exec::RunState& state, const exec::Instruction& instruction) {
  if (!options_ || !options_->on_metadata) return;
  std::lock_guard lock(mutex_);
  ready_[{&state, &instruction}] = now_ns();
}

void RunObserver::before(const exec::RunState& state, const exec::Instruction& instruction) {
  std::lock_guard lock(mutex_);
  bool main_graph = &state.program() == executable_.program.get();
  if (monitor_ && main_graph) {
    if (!begun_) monitor_outside_nodes(state);
    if (monitor_->inputs)
      for (exec::SlotId slot : state.program().operands(instruction).first(instruction.num_inputs))
        call_monitor(state, &instruction, slot, /*is_input=*/true);
  }
  begun_ = true;
  if (!options_) return;
  if (!options_->dump_folder.empty() && matches(options_->dump_pattern, instruction.node->name)) {
    steps_[{&state, &instruction}] = next_step_++;
    dump(state, instruction, /*inputs=*/true);
  }
  if (options_->on_metadata) starts_[{&state, &instruction}] = now_ns();
}

// For a node on a device, observers see host copies of its values, so the statistics name the device instead of the copies' memory.
NodeStatistics RunObserver::statistics_of(const exec::RunState& state, const exec::Instruction& instruction, const Device* device) {
  NodeStatistics node{.name = instruction.node->name,
                      .op_type = instruction.node->op_type,
                      .start_ns = starts_.extract({&state, &instruction}).mapped(),
                      .thread = thread_id()};
  if (auto scheduled = ready_.extract({&state, &instruction})) node.scheduled_ns = scheduled.mapped();
  const Allocator& usual = memory_.allocator ? *memory_.allocator : *plain_allocator();
  for (exec::SlotId slot : state.program().operands(instruction).subspan(instruction.num_inputs)) {
    if (slot == exec::kNoSlot) continue;
    const Datum value = state.value(slot, /*shared=*/false);
    if (!value.is_tensor()) continue;
    const size_t bytes = value.tensor().size_bytes();
    const Allocator* own = device ? nullptr : allocator_of(value.tensor().storage());
    const NodeMemory in{.device = device ? device->name() : "cpu", .allocator = std::string((own ? *own : usual).name())};
    auto same = [&](const NodeMemory& other) { return other.device == in.device && other.allocator == in.allocator; };
    auto found = std::ranges::find_if(node.memory, same);
    if (found == node.memory.end()) found = node.memory.insert(found, in);
    found->bytes += bytes;
    node.output_bytes += bytes;
  }
  return node;
}

void RunObserver::after(const exec::RunState& state, const exec::Instruction& instruction, const Device* device) {
  const int64_t end = now_ns();
  std::lock_guard lock(mutex_);
  if (options_ && options_->on_metadata) {
    metadata_.nodes.push_back(statistics_of(state, instruction, device));
    metadata_.nodes.back().end_ns = end;
  }
  if (monitor_ && &state.program() == executable_.program.get())
    for (exec::SlotId slot : state.program().operands(instruction).subspan(instruction.num_inputs))
      call_monitor(state, &instruction, slot, /*is_input=*/false);
  if (!options_) return;
  if (steps_.contains({&state, &instruction})) {
    dump(state, instruction, /*inputs=*/false);
    steps_.erase({&state, &instruction});
  }
  if (options_->check_finite != FiniteCheck::off) check_finite(state, instruction);
}

// Calls the monitor for values that no instruction computes: feeds, constants, and values determined by the feeds' shapes.
void RunObserver::monitor_outside_nodes(const exec::RunState& state) {
  const auto slots = state.program().slots();
  for (exec::SlotId s : slots.ids())
    if (slots[s].location == exec::LocationKind::constant || slots[s].location == exec::LocationKind::known ||
        slots[s].location == exec::LocationKind::feed)
      call_monitor(state, nullptr, s, /*is_input=*/false);
}

void RunObserver::call_monitor(const exec::RunState& state, const exec::Instruction* instruction, exec::SlotId slot, bool is_input) {
  if (slot == exec::kNoSlot) return;
  for (const std::string& name : executable_.watched[slot]) {
    Datum value = state.value(slot, /*shared=*/false);
    if (!value.defined()) continue;
    monitor_->callback({run_id_, name, instruction ? std::string_view(instruction->node->name) : "",
                        instruction ? std::string_view(instruction->node->op_type) : "", is_input, value});
  }
}

void RunObserver::check_finite(const exec::RunState& state, const exec::Instruction& instruction) const {
  bool infinity_too = options_->check_finite == FiniteCheck::nan_and_infinity;
  const auto operands = state.program().operands(instruction);
  for (size_t k = instruction.num_inputs; k < operands.size(); ++k) {
    if (operands[k] == exec::kNoSlot) continue;
    Datum value = state.value(operands[k], /*shared=*/false);
    if (!value.is_tensor()) continue;
    Finding finding = Finding::finite;
    int64_t index = first_bad(value.tensor(), infinity_too, finding);
    if (index < 0) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("output {} \"{}\" is {} at {}", k - instruction.num_inputs, state.program().name(operands[k]),
                            finding == Finding::nan ? "NaN" : "infinite", position_text(index, value.tensor().shape())));
  }
}

void RunObserver::dump(const exec::RunState& state, const exec::Instruction& instruction, bool inputs) {
  std::filesystem::path folder = std::filesystem::path(options_->dump_folder) / std::to_string(run_id_);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(ErrorCode::io_error, fmt::format("\"{}\": {}", folder.string(), failed.message()));
  const auto operands = state.program().operands(instruction);
  size_t first = inputs ? 0 : instruction.num_inputs, last = inputs ? instruction.num_inputs : operands.size();
  for (size_t k = first; k < last; ++k) {
    if (operands[k] == exec::kNoSlot) continue;
    Datum value = state.value(operands[k], /*shared=*/false);
    if (!value.is_tensor()) continue;
    onnx::TensorDef def;
    def.name = state.program().name(operands[k]);
    def.value = value.tensor().contiguous();
    def.dtype = def.value.dtype();
    def.shape = def.value.shape();
    std::string bytes = onnx::serialize_tensor(def);
    std::string name = fmt::format("{:06}_{}_{}{}.pb", steps_.at({&state, &instruction}), file_name(instruction.node->name),
                                   inputs ? "in" : "out", k - first);
    AtomicFile file((folder / name).string());
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
  }
}

void RunObserver::finish(bool compiled) {
  if (!options_ || !options_->on_metadata) return;
  metadata_.cached = !compiled;
  metadata_.duration_ns = now_ns();
  options_->on_metadata(metadata_);
}

}  // namespace treadle
