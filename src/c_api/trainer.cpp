// Trainers of the C ABI.
#include "c_api/trainer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/status.h"
#include "c_api/values.h"
#include "plugin/communicator.h"
#include "treadle/error.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

struct treadle_checkpoint_folder {
  treadle::train::CheckpointFolder folder;
  std::string resumed;
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::guarded;
using treadle::c_api::options_of;
using treadle::c_api::require;
using treadle::c_api::to_feeds;

treadle::Tensor labels_of(const treadle_value* labels) {
  if (!labels) return {};
  if (!labels->datum.is_tensor()) throw Error(ErrorCode::invalid_argument, "the labels are no tensor");
  return labels->datum.tensor();
}

void hand_out(treadle::train::Trainer made, treadle_trainer** out) {
  std::unique_ptr<treadle_trainer> trainer(new treadle_trainer{std::move(made), {}, {}});
  for (const auto& [name, tensor] : trainer->trainer.parameter_views()) trainer->parameter_names.push_back(name);
  require(out, "out") = trainer.release();
}

void create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
            std::shared_ptr<treadle::Communicator> communicator, treadle_trainer** out) {
  treadle::train::TrainerOptions made;
  if (num_options) (void)require(options, "options");
  for (size_t i = 0; i < num_options; ++i)
    treadle::train::set_option(made, &require(options[i].key, "an option's key"), &require(options[i].value, "an option's value"));
  made.communicator = std::move(communicator);
  hand_out(treadle::train::Trainer(require(model, "model").model, made), out);
}

treadle::train::Metadata metadata_of(const treadle_config_entry* metadata, size_t num_entries) {
  treadle::train::Metadata entries;
  if (num_entries) (void)require(metadata, "metadata");
  for (size_t i = 0; i < num_entries; ++i)
    entries.emplace_back(&require(metadata[i].key, "an entry's key"), &require(metadata[i].value, "an entry's value"));
  return entries;
}

}  // namespace

extern "C" {

treadle_status* treadle_trainer_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                       treadle_trainer** out) {
  return guarded([&] { create(model, options, num_options, nullptr, out); });
}
treadle_status* treadle_trainer_create_rank(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                            const treadle_communicator* communicator, treadle_trainer** out) {
  return guarded(
      [&] { create(model, options, num_options, treadle::plugin::communicator_of(require(communicator, "communicator")), out); });
}
void treadle_trainer_release(treadle_trainer* trainer) { delete trainer; }

treadle_status* treadle_trainer_step(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                     const treadle_value* const* inputs, size_t num_inputs, const treadle_value* labels, double* loss) {
  return guarded([&] {
    const double value =
        require(trainer, "trainer").trainer.step(to_feeds(input_names, inputs, num_inputs), labels_of(labels), options_of(run_options));
    if (loss) *loss = value;
  });
}

treadle_status* treadle_trainer_evaluate(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                         const treadle_value* const* inputs, size_t num_inputs, const treadle_value* labels, double* loss) {
  return guarded([&] {
    const double value =
        require(trainer, "trainer").trainer.evaluate(to_feeds(input_names, inputs, num_inputs), labels_of(labels), options_of(run_options));
    if (loss) *loss = value;
  });
}

treadle_status* treadle_trainer_predict(treadle_trainer* trainer, const treadle_run_options* run_options, const char* const* input_names,
                                        const treadle_value* const* inputs, size_t num_inputs, size_t num_outputs,
                                        treadle_value** outputs) {
  for (size_t i = 0; outputs && i < num_outputs; ++i) outputs[i] = nullptr;
  return guarded([&] {
    (void)require(outputs, "outputs");
    if (const size_t count = require(trainer, "trainer").trainer.output_names().size(); num_outputs != count)
      throw Error(ErrorCode::invalid_argument, "room for " + std::to_string(num_outputs) + " outputs, there are " + std::to_string(count));
    treadle::c_api::hand_out(trainer->trainer.predict(to_feeds(input_names, inputs, num_inputs), options_of(run_options)), outputs);
  });
}

size_t treadle_trainer_num_outputs(const treadle_trainer* trainer) { return trainer ? trainer->trainer.output_names().size() : 0; }
const char* treadle_trainer_output_name(const treadle_trainer* trainer, size_t index) {
  return index < treadle_trainer_num_outputs(trainer) ? trainer->trainer.output_names()[index].c_str() : nullptr;
}
uint64_t treadle_trainer_num_steps(const treadle_trainer* trainer) { return trainer ? trainer->trainer.position().num_steps : 0; }
int64_t treadle_trainer_num_updates(const treadle_trainer* trainer) { return trainer ? trainer->trainer.num_updates() : 0; }
double treadle_trainer_loss_scale(const treadle_trainer* trainer) {
  return trainer ? trainer->trainer.loss_scale().value_or(treadle::train::LossScale()).scale : 0;
}
uint64_t treadle_trainer_num_skipped(const treadle_trainer* trainer) {
  return trainer ? trainer->trainer.loss_scale().value_or(treadle::train::LossScale()).num_skipped : 0;
}
double treadle_trainer_learning_rate(const treadle_trainer* trainer) { return trainer ? trainer->trainer.learning_rate() : 0; }
treadle_status* treadle_trainer_set_learning_rate(treadle_trainer* trainer, double rate) {
  return guarded([&] { require(trainer, "trainer").trainer.set_learning_rate(rate); });
}

size_t treadle_trainer_num_parameters(const treadle_trainer* trainer) { return trainer ? trainer->parameter_names.size() : 0; }
const char* treadle_trainer_parameter_name(const treadle_trainer* trainer, size_t index) {
  if (index >= treadle_trainer_num_parameters(trainer)) return nullptr;
  return trainer->parameter_names[index].c_str();
}
treadle_status* treadle_trainer_parameter(const treadle_trainer* trainer, const char* name, treadle_value** out) {
  return guarded([&] {
    const treadle::train::NamedTensors parameters = require(trainer, "trainer").trainer.parameter_views();
    const auto found = parameters.find(&require(name, "name"));
    if (found == parameters.end()) throw Error(ErrorCode::not_found, "there is no parameter \"" + std::string(name) + "\"");
    require(out, "out") = new treadle_value{found->second};
  });
}

treadle_status* treadle_trainer_save(const treadle_trainer* trainer, const char* path) {
  return guarded([&] { require(trainer, "trainer").trainer.save(&require(path, "path")); });
}

treadle_status* treadle_trainer_save_adapters(const treadle_trainer* trainer, const char* path) {
  return guarded([&] { require(trainer, "trainer").trainer.save_adapters(&require(path, "path")); });
}
treadle_status* treadle_trainer_load_adapters(treadle_trainer* trainer, const char* path) {
  return guarded([&] { require(trainer, "trainer").trainer.load_adapters(&require(path, "path")); });
}
treadle_status* treadle_trainer_use_averages(treadle_trainer* trainer, int use) {
  return guarded([&] { require(trainer, "trainer").trainer.use_averages(use != 0); });
}

treadle_status* treadle_trainer_save_checkpoint(const treadle_trainer* trainer, const char* path, const treadle_config_entry* metadata,
                                                size_t num_entries) {
  return guarded([&] { require(trainer, "trainer").trainer.save_checkpoint(&require(path, "path"), metadata_of(metadata, num_entries)); });
}

treadle_status* treadle_trainer_load_checkpoint(treadle_trainer* trainer, const char* path, int own_settings) {
  using treadle::train::CheckpointSettings;
  return guarded([&] {
    require(trainer, "trainer").metadata =
        trainer->trainer.load_checkpoint(&require(path, "path"), own_settings ? CheckpointSettings::own : CheckpointSettings::same);
  });
}

const char* treadle_trainer_checkpoint_metadata(const treadle_trainer* trainer, const char* key) {
  if (!trainer || !key) return nullptr;
  for (const auto& [name, value] : trainer->metadata)
    if (name == key) return value.c_str();
  return nullptr;
}

treadle_status* treadle_trainer_write_artifacts(const treadle_trainer* trainer, const char* folder) {
  return guarded([&] { require(trainer, "trainer").trainer.write_artifacts(&require(folder, "folder")); });
}
treadle_status* treadle_trainer_open_artifacts(const char* folder, const treadle_config_entry* options, size_t num_options,
                                               treadle_trainer** out) {
  return guarded([&] {
    constexpr std::string_view kOfSession = "session.";
    treadle::SessionOptions session;
    if (num_options) (void)require(options, "options");
    for (size_t i = 0; i < num_options; ++i) {
      const std::string_view name = &require(options[i].key, "an option's key");
      if (!name.starts_with(kOfSession))
        throw Error(ErrorCode::invalid_argument, "the option \"" + std::string(name) +
                                                     "\": artifacts fix all options of their trainer but those of sessions (session.NAME)");
      treadle::set_option(session, name.substr(kOfSession.size()), &require(options[i].value, "an option's value"));
    }
    hand_out(treadle::train::Trainer::open_artifacts(&require(folder, "folder"), session), out);
  });
}

treadle_status* treadle_checkpoint_folder_open(const char* path, int32_t keep_last, int asynchronous, treadle_checkpoint_folder** out) {
  return guarded([&] {
    const treadle::train::CheckpointFolderOptions options{.keep_last = keep_last, .asynchronous = asynchronous != 0};
    require(out, "out") = new treadle_checkpoint_folder{treadle::train::CheckpointFolder(&require(path, "path"), options), {}};
  });
}
void treadle_checkpoint_folder_release(treadle_checkpoint_folder* folder) { delete folder; }

treadle_status* treadle_checkpoint_folder_save(treadle_checkpoint_folder* folder, const treadle_trainer* trainer,
                                               const treadle_config_entry* metadata, size_t num_entries) {
  return guarded([&] { require(folder, "folder").folder.save(require(trainer, "trainer").trainer, metadata_of(metadata, num_entries)); });
}
treadle_status* treadle_checkpoint_folder_wait(treadle_checkpoint_folder* folder) {
  return guarded([&] { require(folder, "folder").folder.wait(); });
}
treadle_status* treadle_checkpoint_folder_resume(treadle_checkpoint_folder* folder, treadle_trainer* trainer, int own_settings,
                                                 const char** path) {
  using treadle::train::CheckpointSettings;
  if (path) *path = nullptr;
  return guarded([&] {
    auto resumed =
        require(folder, "folder")
            .folder.resume(require(trainer, "trainer").trainer, own_settings ? CheckpointSettings::own : CheckpointSettings::same);
    if (!resumed) return;
    trainer->metadata = std::move(resumed->metadata);
    folder->resumed = std::move(resumed->path);
    if (path) *path = folder->resumed.c_str();
  });
}

}  // extern "C"
