// The functions and types of treadle/plugin.h on the library's side: nodes, subgraphs and calls as a plugin sees them.
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

#include "core/values/allocation.h"
#include "graph/deferred.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/kernel.h"
#include "treadle/error.h"
#include "treadle/plugin.h"

/// A node with the types of its operands, as passed to plugins.
struct treadle_node {
  const treadle::Node* node = nullptr;
  std::vector<const char*> input_names, output_names;  // empty if the caller does not know them
  std::vector<treadle::Type> input_types, output_types;
  std::vector<const treadle::Tensor*> constants;  // one per input; null: the input is not constant
  /// Symbolic extents of outputs, by output and axis. The C interface passes numbers only, so callbacks inside the library store them here.
  mutable std::map<std::pair<size_t, int>, treadle::Dim> known_extents = {};
  // Attributes that are lists of texts, joined to one text with a line for each.
  std::map<std::string, std::string, std::less<>> lines = {};
};

struct treadle_subgraph {
  std::vector<treadle_node> nodes;
  std::vector<const char*> inputs, outputs;
};

struct treadle_gradient {
  treadle::GradientContext& context;
  treadle_node node;
  std::vector<treadle::ValueId> inputs;  // gradients of the node's inputs, set by the plugin
};

struct treadle_call {
  treadle_call(const treadle::RunContext& run, const treadle::Node& of, const treadle::AllocationContext* charged);
  treadle::DeferringOperands& operands() const { return dynamic_cast<treadle::DeferringOperands&>(*context.dynamic_); }

  treadle::RunContext context;
  const treadle::Node* node = nullptr;
  const treadle::AllocationContext* memory = nullptr;  // allocation context of the thread that began the call
  std::thread::id thread;
  mutable std::vector<treadle::Tensor> inputs;  // contiguous (copied if necessary); filled in on first use
  std::vector<treadle::Tensor> outputs;

  // Protects the members below from the plugin's threads: the one that called run, the one that completes the call, and those that read
  // operands.
  mutable std::mutex mutex;
  mutable std::exception_ptr failure;        // first exception in a host function of this call, even if the plugin ignores it
  bool returned = false, completed = false;  // true if `run` has returned TREADLE_PENDING; true if call_complete() has been called
  std::exception_ptr error;
  std::shared_ptr<treadle::Completion> completion;
  std::shared_ptr<treadle_call> self;  // keeps the call alive while it is pending

  /// Passes the outputs on to the run.
  /// @throws the stored failure, or an Error for an output that the plugin did not make.
  void take_outputs();
  void rethrow_failure() const;
};

namespace treadle::plugin {

const treadle_host& host();

treadle_node view_of(const Graph& graph, const Node& node);
treadle_node view_of(const CreateContext& context);
treadle_node view_of(const InferContext& context);

/// Copies a struct that a plugin registers. Plugins built with an earlier version have a smaller struct; fields that it does not have are
/// zero.
/// @throws Error(invalid_argument) for a size below the first version's or above this one's.
template <typename T>
T of_any_version(const T& given, size_t first_version_bytes, std::string_view name) {
  if (given.size < first_version_bytes || given.size > sizeof(T))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}::size is {}, expected {}", name, given.size, sizeof(T)));
  T copy{};
  std::memcpy(&copy, &given, given.size);
  return copy;
}

/// Clears the text of an earlier failure on this thread.
void clear_failure();
/// Returns the text of the failure that a callback on this thread has reported, and clears it; empty: none.
std::string take_failure();

/// Calls a plugin's `run` for the operands of `context`. If the plugin returns "pending", the kernel is deferred (graph/deferred.h).
/// @throws Error(internal) with the plugin's text, or for an output that it did not make.
void run_call(const Node& node, RunContext& context, int (*run)(void* user, void* state, const treadle_host*, treadle_call*), void* user,
              void* state);

}  // namespace treadle::plugin
