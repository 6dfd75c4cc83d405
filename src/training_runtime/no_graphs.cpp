// Replaces the functions that build training graphs in a reduced library, which reads such graphs only from training artifacts.
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/training/gradient_operator.h"
#include "session/refusals.h"
#include "train/options/options.h"
#include "train/trainer/trainer_graphs.h"
#include "treadle/error.h"

namespace treadle::ops {

// ONNX's Gradient operator. Its type inference needs gradient rules, which this reduced library lacks, so it fails.
OpDef gradient_operator() {
  return {.name = "Gradient", .domain = "ai.onnx.preview.training", .since = {1}, .infer = [](InferContext&) {
            throw Error(ErrorCode::not_implemented, "Gradient: this is a build for training from artifacts, which has no gradients");
          }};
}

}  // namespace treadle::ops

namespace treadle::train {
namespace {

[[noreturn]] void throw_missing(const char* what) {
  throw Error(ErrorCode::not_implemented,
              std::string(what) + ": this is a build for training from artifacts; write them with `treadle artifacts` of a whole one");
}

}  // namespace

TrainerGraphs::TrainerGraphs(const Model& source, const TrainerOptions&) : model(source) { throw_missing("a trainer of a model"); }
std::unique_ptr<Graph> TrainerGraphs::first_step_graph(const SessionOptions&, std::vector<std::string>&) {
  return first_opened_step_graph();
}
std::unique_ptr<Graph> TrainerGraphs::step_graph(const SessionOptions&, bool) const { return opened_step_graph(); }
std::unique_ptr<Graph> TrainerGraphs::update_graph() const { return opened->update(); }
std::unique_ptr<Graph> TrainerGraphs::gradient_graph(const SessionOptions&, bool) const { refuse("training from artifacts", "gradients"); }
std::unique_ptr<Graph> TrainerGraphs::inference_graph(Inference wanted) const {
  return opened->evaluation(wanted.loss, wanted.outputs, values);
}
std::string TrainerGraphs::description() const { throw_missing("several trainers as one"); }

void set_option(TrainerOptions&, std::string_view, const std::string&) { throw_missing("a trainer of a model"); }
void set_option(JointOptions&, std::string_view, const std::string&) { throw_missing("a joint module"); }
void set_loss(TrainerOptions&, const std::string&) { throw_missing("a trainer of a model"); }
void add_group(TrainerOptions&, const std::string&) { throw_missing("a trainer of a model"); }
void add_initialization(TrainerOptions&, const std::string&) { throw_missing("a trainer of a model"); }

void optimize(Graph&, const SessionOptions&, const SessionDevices*, std::vector<std::string>) { throw_missing("an optimiser"); }
void Trainer::write_artifacts(const std::string&) const { throw_missing("writing artifacts"); }

}  // namespace treadle::train
