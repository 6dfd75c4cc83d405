// The library's side of treadle/plugin.h: nodes, subgraphs and calls as a plugin sees them.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/allocation.h"
#include "graph/deferred.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/kernel.h"
#include "treadle/error.h"
#include "treadle/plugin.h"

/// A node with the types of its operands.
struct treadle_node {
  const treadle::Node* node = nullptr;
  std::vector<const char*> input_names, output_names;  // empty where the context knows no names
  std::vector<treadle::Type> input_types, output_types;
  std::vector<const treadle::Tensor*> constants;  // per input; null where it is none
  /// Of outputs, by place and axis: extents that a callback of ours knows, and that are no numbers.
  mutable std::map<std::pair<size_t, int>, treadle::Dim> known_extents = {};
};

struct treadle_subgraph {
  std::vector<treadle_node> nodes;
  std::vector<const char*> inputs, outputs;
};

struct treadle_gradient {
  treadle::GradientContext& context;
  treadle_node node;
  std::vector<treadle::ValueId> inputs;  // their gradients
};

struct treadle_call {
  treadle_call(const treadle::RunContext& run, const treadle::Node& of, const treadle::AllocationContext* charged);
  treadle::DeferringOperands& operands() const { return dynamic_cast<treadle::DeferringOperands&>(*context.dynamic_); }

  treadle::RunContext context;
  const treadle::Node* node = nullptr;
  const treadle::AllocationContext* memory = nullptr;  // of the thread that began it
  std::thread::id thread;
  mutable std::vector<treadle::Tensor> inputs;  // contiguous; looked up when asked for
  std::vector<treadle::Tensor> outputs;

  // Between the threads of the plugin: the one that called run, the one that completes, and those that ask for operands.
  mutable std::mutex mutex;
  mutable std::exception_ptr failure;        // the first of what a function of the host could not do, whatever the plugin makes of that
  bool returned = false, completed = false;  // run has returned "pending"; call_complete has been called
  std::exception_ptr error;
  std::shared_ptr<treadle::Completion> completion;
  std::shared_ptr<treadle_call> self;  // while it is pending

  /// Hands the outputs over. @throws the failure, or Error for an output that was not made.
  void take_outputs();
  void rethrow_failure() const;
};

namespace treadle::plugin {

const treadle_host& host();

treadle_node view_of(const Graph& graph, const Node& node);
treadle_node view_of(const CreateContext& context);
treadle_node view_of(const InferContext& context);

/// A copy of what a plugin registers. Plugins of earlier versions know fewer fields; what they do not know is absent.
/// @throws Error(invalid_argument) for a size below the first version's, or above this one's.
template <typename T>
T of_any_version(const T& given, size_t first_version_bytes, std::string_view name) {
  if (given.size < first_version_bytes || given.size > sizeof(T))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}::size is {}, expected {}", name, given.size, sizeof(T)));
  T copy{};
  std::memcpy(&copy, &given, given.size);
  return copy;
}

/// Forgets the text that an earlier callback of this thread left.
void clear_failure();
/// The text of the failure that a callback of this thread reported; empty without one.
std::string take_failure();

/// Calls a plugin's `run` for the operands of `context`. If it is pending, so is the kernel (graph/deferred.h). @throws Error(internal)
/// with the plugin's text, or for an output that it did not make.
void run_call(const Node& node, RunContext& context, int (*run)(void* user, void* state, const treadle_host*, treadle_call*), void* user,
              void* state);

}  // namespace treadle::plugin
