// Implements the joint modules of the C ABI.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/profiler.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

struct treadle_joint_module : treadle::c_api::Handle<treadle_joint_module> {
  treadle::train::JointModule module;
};

struct treadle_joint_run : treadle::c_api::Handle<treadle_joint_run> {
  treadle::train::JointModule::Run run;
  size_t num_gradients;
};

namespace {

using namespace treadle::c_api;
using treadle::Error;
using treadle::ErrorCode;
using treadle::Tensor;

const char* name_at(const std::vector<std::string>& names, size_t index) { return index < names.size() ? names[index].c_str() : nullptr; }

}  // namespace

extern "C" {

treadle_status* treadle_joint_module_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                            treadle_joint_module** out) {
  return call(__func__, {handle(model, "model"), each_entry(options, num_options, "options"), needed(out, "out")}, [&] {
    treadle::train::JointOptions made;
    for (size_t i = 0; i < num_options; ++i) treadle::train::set_option(made, options[i].key, options[i].value);
    *out = make<treadle_joint_module>(treadle::train::JointModule(model->model, made)).release();
  });
}
void treadle_joint_module_release(treadle_joint_module* module) { dispose(module); }

treadle_status* treadle_joint_module_start_profiler(treadle_joint_module* module, const treadle_profiler_options* options,
                                                    treadle_profiler** out) {
  return call(__func__, {handle(module, "module"), profiler_options(options), needed(out, "out")},
              [&] { *out = make<treadle_profiler>(module->module.profiler(profiler_options_of(options))).release(); });
}

size_t treadle_joint_module_num_inputs(const treadle_joint_module* module) {
  return asked<size_t>(module, 0, [](const treadle_joint_module& m) { return m.module.input_names().size(); });
}
const char* treadle_joint_module_input_name(const treadle_joint_module* module, size_t index) {
  return asked<const char*>(module, nullptr, [&](const treadle_joint_module& m) { return name_at(m.module.input_names(), index); });
}
size_t treadle_joint_module_num_outputs(const treadle_joint_module* module) {
  return asked<size_t>(module, 0, [](const treadle_joint_module& m) { return m.module.output_names().size(); });
}
const char* treadle_joint_module_output_name(const treadle_joint_module* module, size_t index) {
  return asked<const char*>(module, nullptr, [&](const treadle_joint_module& m) { return name_at(m.module.output_names(), index); });
}
size_t treadle_joint_module_num_gradients(const treadle_joint_module* module) {
  return asked<size_t>(module, 0, [](const treadle_joint_module& m) { return m.module.gradient_names().size(); });
}
const char* treadle_joint_module_gradient_name(const treadle_joint_module* module, size_t index) {
  return asked<const char*>(module, nullptr, [&](const treadle_joint_module& m) { return name_at(m.module.gradient_names(), index); });
}

treadle_status* treadle_joint_module_parameter(const treadle_joint_module* module, const char* name, treadle_value** out) {
  return call(__func__, {handle(module, "module"), needed(name, "name"), needed(out, "out")}, [&] {
    const treadle::train::NamedTensors& parameters = module->module.parameters();
    const auto found = parameters.find(name);
    if (found == parameters.end()) throw Error(ErrorCode::not_found, "there is no parameter \"" + std::string(name) + "\"");
    *out = make<treadle_value>(found->second).release();
  });
}

treadle_status* treadle_joint_module_forward(treadle_joint_module* module, const treadle_run_options* run_options,
                                             const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                             treadle_joint_run** out) {
  return call(
      __func__,
      {handle(module, "module"), handle_or_null(run_options, "run_options"), feeds(input_names, inputs, num_inputs), needed(out, "out")},
      [&] {
        treadle::train::JointModule& joint = module->module;
        auto run = joint.forward(to_feeds(input_names, inputs, num_inputs), options_of(run_options));
        *out = make<treadle_joint_run>(std::move(run), joint.gradient_names().size()).release();
      });
}

treadle_status* treadle_joint_module_save(const treadle_joint_module* module, const char* path) {
  return call(__func__, {handle(module, "module"), needed(path, "path")}, [&] { module->module.save(path); });
}

void treadle_joint_run_release(treadle_joint_run* run) { dispose(run); }

treadle_status* treadle_joint_run_output(const treadle_joint_run* run, size_t index, treadle_value** out) {
  return call(__func__, {handle(run, "run"), needed(out, "out")}, [&] {
    const std::vector<Tensor>& outputs = run->run.outputs();
    if (index >= outputs.size())
      throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()));
    *out = make<treadle_value>(outputs[index]).release();
  });
}

treadle_status* treadle_joint_run_backward(treadle_joint_run* run, const treadle_value* const* grad_outputs, size_t num_grad_outputs,
                                           size_t num_gradients, treadle_value** gradients) {
  clear(gradients, num_gradients);
  return call(
      __func__,
      {handle(run, "run"), each_value_or_null(grad_outputs, num_grad_outputs, "grad_outputs"), list(gradients, num_gradients, "gradients")},
      [&] {
        if (num_gradients != run->num_gradients)
          throw Error(ErrorCode::invalid_argument,
                      "room for " + std::to_string(num_gradients) + " gradients, there are " + std::to_string(run->num_gradients));
        const std::vector<Tensor> handed_in = to_tensors(grad_outputs, num_grad_outputs, "the gradient of an output");
        std::vector<std::unique_ptr<treadle_value>> made;
        for (const Tensor& gradient : run->run.backward_in_order(handed_in))
          made.push_back(gradient.defined() ? make<treadle_value>(gradient) : nullptr);
        for (size_t i = 0; i < made.size(); ++i) gradients[i] = made[i].release();
      });
}

treadle_status* treadle_joint_run_gradient_rows(const treadle_joint_run* run, size_t index, treadle_value** out) {
  return call(__func__, {handle(run, "run"), needed(out, "out")}, [&] {
    if (index >= run->num_gradients || !run->run.rows(index).defined())
      throw Error(ErrorCode::invalid_argument, "the gradient " + std::to_string(index) + " is not by rows, or there is none yet");
    *out = make<treadle_value>(run->run.rows(index)).release();
  });
}

}  // extern "C"
