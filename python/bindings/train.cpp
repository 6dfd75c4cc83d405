// Trainer and JointModule.
#include "treadle/train.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "datum.h"
#include "numpy.h"
#include "treadle/sharing.h"

namespace treadle::python {
namespace {

using train::Feeds;
using train::JointModule;
using train::NamedTensors;
using train::Trainer;

// For the length of a call.
Feeds feeds_from_dict(const nb::dict& feeds, BufferScope& scope) {
  Feeds made;
  for (auto [name, value] : feeds) made.emplace(string_from_python(name), datum_from_python(value, "", &scope));
  return made;
}

nb::dict to_dict(const NamedTensors& tensors) {
  nb::dict dict;
  for (const auto& [name, tensor] : tensors) dict[string_to_python(name)] = array_from_tensor(tensor);
  return dict;
}

nb::bytes to_bytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

template <typename Fn>
auto with_batch(const nb::dict& feeds, nb::handle labels, Fn&& fn) {
  BufferScope scope;
  const Feeds made = feeds_from_dict(feeds, scope);
  const Tensor targets = tensor_from_array(labels, &scope);
  nb::gil_scoped_release release;
  return fn(made, targets);
}

nb::list predict(Trainer& trainer, const nb::dict& feeds, const PyRunOptions* options) {
  std::vector<Datum> outputs;
  {
    BufferScope scope;
    const Feeds made = feeds_from_dict(feeds, scope);
    nb::gil_scoped_release release;
    outputs = trainer.predict(made, options);
  }
  nb::list list;
  for (Datum& output : outputs) list.append(output_to_python(std::move(output)));
  return list;
}

// A run that stands at its Yield holds its feeds itself.
JointModule::Run begin(JointModule& module, const nb::dict& feeds, const PyRunOptions* options) {
  Feeds made;
  for (auto [name, value] : feeds) made.emplace(string_from_python(name), datum_from_python(value, "", nullptr));
  nb::gil_scoped_release release;
  return module.begin(made, options);
}

JointModule::Run forward(JointModule& module, const nb::dict& feeds, const PyRunOptions* options) {
  JointModule::Run run = begin(module, feeds, options);
  nb::gil_scoped_release release;
  run.advance_steps(SIZE_MAX);
  return run;
}

nb::list run_outputs(const JointModule::Run& run) {
  nb::list list;
  for (const Tensor& output : run.outputs()) list.append(array_from_tensor(output));
  return list;
}

nb::dict backward(JointModule::Run& run, const nb::list& grad_outputs) {
  std::vector<Tensor> made;
  for (nb::handle value : grad_outputs) made.push_back(tensor_from_array(value));
  NamedTensors gradients;
  {
    nb::gil_scoped_release release;
    gradients = run.backward(made);
  }
  return to_dict(gradients);
}

}  // namespace

void register_train(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Trainer>(module, "Trainer")
      .def(
          "__init__",
          [](Trainer* self, const Model& model, const std::string& output, const std::string& loss, bool int32_labels, double learning_rate,
             double momentum, double weight_decay, bool nesterov, std::vector<std::string> parameters, std::vector<std::string> frozen,
             int num_threads, bool fused_update, size_t memory_limit_bytes, const std::string& spill_folder, std::shared_ptr<Job> job,
             const PySessionOptions* session) {
            if (loss != "softmax_cross_entropy" && loss != "mean_squared_error")
              throw Error(ErrorCode::invalid_argument, "loss is \"" + loss + "\"; it must be softmax_cross_entropy or mean_squared_error");
            train::TrainerOptions options;
            options.output = output;
            options.loss = loss == "mean_squared_error" ? train::Loss::mean_squared_error : train::Loss::softmax_cross_entropy;
            options.int32_labels = int32_labels;
            options.learning_rate = learning_rate;
            options.momentum = momentum;
            options.weight_decay = weight_decay;
            options.nesterov = nesterov;
            options.parameters = std::move(parameters);
            options.frozen = std::move(frozen);
            options.fused_update = fused_update;
            if (session) options.session = with_warnings(*session);
            if (num_threads > 0) options.session.intra_op_num_threads = num_threads;
            if (memory_limit_bytes > 0) options.session.memory_limit_bytes = memory_limit_bytes;
            if (!spill_folder.empty()) options.session.spill_folder = spill_folder;
            if (job) options.session.job = std::move(job);
            new (self) Trainer(model, options);
          },
          "model"_a, "output"_a, "loss"_a, "int32_labels"_a, "learning_rate"_a, "momentum"_a, "weight_decay"_a, "nesterov"_a,
          "parameters"_a, "frozen"_a, "num_threads"_a, "fused_update"_a, "memory_limit_bytes"_a, "spill_folder"_a, "job"_a.none(),
          "session"_a.none())
      .def("memory_statistics", [](const Trainer& self) { return memory_dict(self.memory_statistics()); })
      .def("set_memory_limit", &Trainer::set_memory_limit, "limit_bytes"_a)
      .def(
          "step",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return with_batch(feeds, labels, [&](const Feeds& made, const Tensor& targets) { return self.step(made, targets, options); });
          },
          "feeds"_a, "labels"_a, "options"_a.none() = nb::none())
      .def(
          "evaluate",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return with_batch(feeds, labels,
                              [&](const Feeds& made, const Tensor& targets) { return self.evaluate(made, targets, options); });
          },
          "feeds"_a, "labels"_a, "options"_a.none() = nb::none())
      .def(
          "gradients",
          [](Trainer& self, const nb::dict& feeds, nb::handle labels, const PyRunOptions* options) {
            return to_dict(with_batch(feeds, labels,
                                      [&](const Feeds& made, const Tensor& targets) { return self.gradients(made, targets, options); }));
          },
          "feeds"_a, "labels"_a, "options"_a.none() = nb::none())
      .def("predict", &predict, "feeds"_a, "options"_a.none() = nb::none())
      .def("end_profiling", &Trainer::end_profiling)
      .def_prop_ro("parameters", [](const Trainer& self) { return to_dict(self.parameters()); })
      .def_prop_ro("states", [](const Trainer& self) { return to_dict(self.states()); })
      .def_prop_ro("momentum", [](const Trainer& self) { return to_dict(self.momentum()); })
      .def_prop_rw("learning_rate", &Trainer::learning_rate, &Trainer::set_learning_rate)
      .def_prop_ro("output_names", &Trainer::output_names)
      .def("save", &Trainer::save, "path"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "to_bytes", [](const Trainer& self, const train::Metadata& metadata) { return to_bytes(self.to_bytes(metadata)); }, "metadata"_a)
      .def("to_text", &Trainer::to_text);

  nb::class_<JointModule::Run>(module, "JointRun")
      .def_prop_ro("outputs", &run_outputs)
      .def("advance_steps", &JointModule::Run::advance_steps, "count"_a = 1, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("steps_left", &JointModule::Run::steps_left)
      .def("backward", &backward, "grad_outputs"_a);
  nb::class_<JointModule>(module, "JointModule")
      .def(
          "__init__",
          [](JointModule* self, const Model& model, std::vector<std::string> outputs, std::vector<std::string> inputs,
             std::vector<std::string> parameters, std::vector<std::string> frozen, int num_threads, std::string device,
             std::map<std::string, std::string> group2ctx, std::map<std::string, std::string> argument_devices, std::shared_ptr<Job> job,
             const PySessionOptions* session) {
            train::JointOptions options{.outputs = std::move(outputs),
                                        .inputs = std::move(inputs),
                                        .parameters = std::move(parameters),
                                        .frozen = std::move(frozen)};
            if (session) options.session = with_warnings(*session);
            if (num_threads > 0) options.session.intra_op_num_threads = num_threads;
            if (!device.empty()) options.session.device = std::move(device);
            if (!group2ctx.empty()) options.session.group2ctx = std::move(group2ctx);
            if (!argument_devices.empty()) options.session.argument_devices = std::move(argument_devices);
            if (job) options.session.job = std::move(job);
            new (self) JointModule(model, options);
          },
          "model"_a, "outputs"_a, "inputs"_a, "parameters"_a, "frozen"_a, "num_threads"_a, "device"_a = "",
          "group2ctx"_a = std::map<std::string, std::string>(), "argument_devices"_a = std::map<std::string, std::string>(),
          "job"_a.none() = nb::none(), "session"_a.none() = nb::none())
      .def("forward", &forward, "feeds"_a, "options"_a.none() = nb::none(), nb::keep_alive<0, 3>())
      .def("begin", &begin, "feeds"_a, "options"_a.none() = nb::none(), nb::keep_alive<0, 3>())
      .def("memory_statistics", [](const JointModule& self) { return memory_dict(self.memory_statistics()); })
      .def("set_memory_limit", &JointModule::set_memory_limit, "limit_bytes"_a)
      .def("end_profiling", &JointModule::end_profiling)
      .def_prop_ro("output_names", &JointModule::output_names)
      .def_prop_ro("parameters", [](const JointModule& self) { return to_dict(self.parameters()); })
      .def_prop_ro("states", [](const JointModule& self) { return to_dict(self.states()); })
      .def("save", &JointModule::save, "path"_a, "metadata"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "to_bytes", [](const JointModule& self, const train::Metadata& metadata) { return to_bytes(self.to_bytes(metadata)); },
          "metadata"_a);
}

}  // namespace treadle::python
