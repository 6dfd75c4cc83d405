// Joint modules of the C ABI.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/profiler.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

struct treadle_joint_module {
  treadle::train::JointModule module;
};

struct treadle_joint_run {
  treadle::train::JointModule::Run run;
  size_t num_gradients;
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::Tensor;
using treadle::c_api::guarded;
using treadle::c_api::require;
using treadle::c_api::to_feeds;

const char* name_at(const std::vector<std::string>& names, size_t index) { return index < names.size() ? names[index].c_str() : nullptr; }

}  // namespace

extern "C" {

treadle_status* treadle_joint_module_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                            treadle_joint_module** out) {
  return guarded([&] {
    treadle::train::JointOptions made;
    if (num_options) (void)require(options, "options");
    for (size_t i = 0; i < num_options; ++i)
      treadle::train::set_option(made, &require(options[i].key, "an option's key"), &require(options[i].value, "an option's value"));
    (void)require(out, "out");
    *out = new treadle_joint_module{treadle::train::JointModule(require(model, "model").model, made)};
  });
}
void treadle_joint_module_release(treadle_joint_module* module) { delete module; }

treadle_status* treadle_joint_module_start_profiler(treadle_joint_module* module, const treadle_profiler_options* options,
                                                    treadle_profiler** out) {
  return guarded([&] {
    (void)require(out, "out");
    *out = new treadle_profiler{require(module, "module").module.profiler(treadle::c_api::profiler_options_of(options))};
  });
}

size_t treadle_joint_module_num_inputs(const treadle_joint_module* module) { return module ? module->module.input_names().size() : 0; }
const char* treadle_joint_module_input_name(const treadle_joint_module* module, size_t index) {
  return module ? name_at(module->module.input_names(), index) : nullptr;
}
size_t treadle_joint_module_num_outputs(const treadle_joint_module* module) { return module ? module->module.output_names().size() : 0; }
const char* treadle_joint_module_output_name(const treadle_joint_module* module, size_t index) {
  return module ? name_at(module->module.output_names(), index) : nullptr;
}
size_t treadle_joint_module_num_gradients(const treadle_joint_module* module) {
  return module ? module->module.gradient_names().size() : 0;
}
const char* treadle_joint_module_gradient_name(const treadle_joint_module* module, size_t index) {
  return module ? name_at(module->module.gradient_names(), index) : nullptr;
}

treadle_status* treadle_joint_module_parameter(const treadle_joint_module* module, const char* name, treadle_value** out) {
  return guarded([&] {
    const treadle::train::NamedTensors& parameters = require(module, "module").module.parameters();
    const auto found = parameters.find(&require(name, "name"));
    if (found == parameters.end()) throw Error(ErrorCode::not_found, "there is no parameter \"" + std::string(name) + "\"");
    require(out, "out") = new treadle_value{found->second};
  });
}

treadle_status* treadle_joint_module_forward(treadle_joint_module* module, const treadle_run_options* run_options,
                                             const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                             treadle_joint_run** out) {
  return guarded([&] {
    treadle::train::JointModule& joint = require(module, "module").module;
    (void)require(out, "out");
    *out = new treadle_joint_run{joint.forward(to_feeds(input_names, inputs, num_inputs), run_options ? &run_options->options : nullptr),
                                 joint.gradient_names().size()};
  });
}

treadle_status* treadle_joint_module_save(const treadle_joint_module* module, const char* path) {
  return guarded([&] { require(module, "module").module.save(&require(path, "path")); });
}

void treadle_joint_run_release(treadle_joint_run* run) { delete run; }

treadle_status* treadle_joint_run_output(const treadle_joint_run* run, size_t index, treadle_value** out) {
  return guarded([&] {
    const std::vector<Tensor>& outputs = require(run, "run").run.outputs();
    if (index >= outputs.size())
      throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()));
    require(out, "out") = new treadle_value{outputs[index]};
  });
}

treadle_status* treadle_joint_run_backward(treadle_joint_run* run, const treadle_value* const* grad_outputs, size_t num_grad_outputs,
                                           size_t num_gradients, treadle_value** gradients) {
  for (size_t i = 0; gradients && i < num_gradients; ++i) gradients[i] = nullptr;
  return guarded([&] {
    treadle_joint_run& joint = require(run, "run");
    if (num_grad_outputs) (void)require(grad_outputs, "grad_outputs");
    if (num_gradients) (void)require(gradients, "gradients");
    if (num_gradients != joint.num_gradients)
      throw Error(ErrorCode::invalid_argument,
                  "room for " + std::to_string(num_gradients) + " gradients, there are " + std::to_string(joint.num_gradients));
    std::vector<Tensor> handed_in;
    for (size_t i = 0; i < num_grad_outputs; ++i) {
      if (grad_outputs[i] && !grad_outputs[i]->datum.is_tensor())
        throw Error(ErrorCode::invalid_argument, "the gradient of an output is no tensor");
      handed_in.push_back(grad_outputs[i] ? grad_outputs[i]->datum.tensor() : Tensor());
    }
    std::vector<std::unique_ptr<treadle_value>> made;
    for (const Tensor& gradient : joint.run.backward_in_order(handed_in))
      made.push_back(gradient.defined() ? std::make_unique<treadle_value>(treadle_value{gradient}) : nullptr);
    for (size_t i = 0; i < made.size(); ++i) gradients[i] = made[i].release();
  });
}

treadle_status* treadle_joint_run_gradient_rows(const treadle_joint_run* run, size_t index, treadle_value** out) {
  return guarded([&] {
    if (index >= require(run, "run").num_gradients || !run->run.rows(index).defined())
      throw Error(ErrorCode::invalid_argument, "the gradient " + std::to_string(index) + " is not by rows, or there is none yet");
    require(out, "out") = new treadle_value{run->run.rows(index)};
  });
}

}  // extern "C"
