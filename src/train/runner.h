// Runs a training graph: its inputs are the caller's feeds and tensors that the trainer keeps.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/frame.h"
#include "exec/program.h"
#include "train/training_graph.h"

namespace treadle::train {

class Runner {
 public:
  /// @param kept  tensors by input name; the rest of the inputs are fed.
  /// @param options  of the program.
  Runner(std::unique_ptr<Graph> graph, const std::vector<const NamedTensors*>& kept,
         const exec::ProgramOptions& options = {.pieces_in_place = true});

  /// Every input in order. @throws Error(invalid_argument) naming the feed that is missing or unknown.
  std::vector<Datum> arrange(const Feeds& feeds, const Datum& labels, const Datum& learning_rate) const;
  const exec::Program& program() const { return *program_; }
  const Graph& graph() const { return *graph_; }

 private:
  std::shared_ptr<const Graph> graph_;
  std::unique_ptr<exec::Program> program_;
  std::vector<std::string> names_;  // of the inputs
  std::vector<Datum> kept_;         // per input; undefined: fed
};

}  // namespace treadle::train
