// Data of the C ABI: files for a trainer, and loaders of their batches.
#include "treadle/data.h"

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/status.h"
#include "c_api/trainer.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

struct treadle_dataset {
  treadle::train::OpenedData opened;
};

struct treadle_data_loader {
  treadle::train::DataLoader loader;
  std::optional<treadle::train::NamedTensors> batch;  // as read: feeds and labels
  treadle::train::Feeds feeds;
  treadle::Tensor labels;
  treadle::train::Metadata position;  // what the entries point to
  std::vector<treadle_config_entry> entries;
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::guarded;
using treadle::c_api::options_of;
using treadle::c_api::require;

template <typename T>
T number_of(std::string_view name, std::string_view text) {
  T number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is \"" + std::string(text) + "\", which is no number");
  return number;
}

bool flag_of(std::string_view name, std::string_view text) {
  const int flag = number_of<int>(name, text);
  if (flag != 0 && flag != 1)
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is \"" + std::string(text) + "\"; it is 0 or 1");
  return flag == 1;
}

/// set(name, value) tells whether there is such an option.
template <typename Set>
void read_options(const treadle_config_entry* options, size_t num_options, const char* known, const Set& set) {
  if (num_options) (void)require(options, "options");
  for (size_t i = 0; i < num_options; ++i) {
    const std::string_view name = &require(options[i].key, "an option's key"), value = &require(options[i].value, "an option's value");
    if (!set(name, value))
      throw Error(ErrorCode::not_found, "there is no option \"" + std::string(name) + "\"; all: " + std::string(known));
  }
}

treadle::train::DataFiles files_of(const treadle_config_entry* options, size_t num_options) {
  treadle::train::DataFiles files;
  read_options(options, num_options, "data, labels, features, scale", [&](std::string_view name, std::string_view value) {
    if (name == "data") {
      files.paths.emplace_back(value);
    } else if (name == "labels") {
      files.labels = value;
    } else if (name == "scale") {
      files.scale = number_of<double>(name, value);
    } else if (name == "features") {
      for (size_t at = 0; at < value.size();) {
        const size_t end = std::min(value.find(',', at), value.size());
        if (end > at) files.features.emplace_back(value.substr(at, end - at));
        at = end + 1;
      }
    } else {
      return false;
    }
    return true;
  });
  if (files.paths.empty()) throw Error(ErrorCode::invalid_argument, "the option \"data\" is missing: the files to read");
  return files;
}

treadle::train::LoaderOptions loader_options(const treadle_config_entry* options, size_t num_options) {
  treadle::train::LoaderOptions made;
  read_options(options, num_options, "batch_size, shuffle, seed, drop_last, prefetch", [&](std::string_view name, std::string_view value) {
    if (name == "batch_size")
      made.batch_size = number_of<int64_t>(name, value);
    else if (name == "shuffle")
      made.shuffle = flag_of(name, value);
    else if (name == "seed")
      made.seed = number_of<uint64_t>(name, value);
    else if (name == "drop_last")
      made.drop_last = flag_of(name, value);
    else if (name == "prefetch")
      made.prefetch = number_of<int>(name, value);
    else
      return false;
    return true;
  });
  return made;
}

const treadle_data_loader& with_batch(const treadle_data_loader* loader) {
  const treadle_data_loader& given = require(loader, "loader");
  if (!given.batch) throw Error(ErrorCode::invalid_argument, "the loader holds no batch: treadle_data_loader_next reads one");
  return given;
}

}  // namespace

extern "C" {

treadle_status* treadle_dataset_open(const treadle_trainer* trainer, const treadle_config_entry* options, size_t num_options,
                                     const treadle_dataset* like, treadle_dataset** out) {
  return guarded([&] {
    const treadle::train::Trainer& opened = require(trainer, "trainer").trainer;
    const treadle::train::LabelForm labels = treadle::train::label_form(opened.options(), opened.model());
    const std::vector<std::string> classes = like ? like->opened.classes : std::vector<std::string>();
    const std::vector<treadle::ValueInfo> inputs = treadle::train::fed_inputs(opened.options(), opened.model());
    require(out, "out") = new treadle_dataset{treadle::train::open_data(files_of(options, num_options), inputs, labels, classes)};
  });
}
void treadle_dataset_release(treadle_dataset* dataset) { delete dataset; }
int64_t treadle_dataset_num_samples(const treadle_dataset* dataset) { return dataset ? dataset->opened.data->num_samples() : 0; }
const char* treadle_dataset_class_name(const treadle_dataset* dataset, size_t index) {
  return dataset && index < dataset->opened.classes.size() ? dataset->opened.classes[index].c_str() : nullptr;
}
treadle_status* treadle_dataset_split(const treadle_dataset* dataset, double fraction, uint64_t seed, treadle_dataset** training,
                                      treadle_dataset** validation) {
  return guarded([&] {
    (void)require(training, "training"), (void)require(validation, "validation");
    const treadle::train::OpenedData& opened = require(dataset, "dataset").opened;
    treadle::train::SplitData parts = treadle::train::split(opened.data, fraction, seed);
    std::unique_ptr<treadle_dataset> first(new treadle_dataset{{std::move(parts.training), opened.classes}});
    *validation = new treadle_dataset{{std::move(parts.validation), opened.classes}};
    *training = first.release();
  });
}

treadle_status* treadle_data_loader_create(const treadle_dataset* dataset, const treadle_config_entry* options, size_t num_options,
                                           treadle_data_loader** out) {
  return guarded([&] {
    const treadle::train::LoaderOptions made = loader_options(options, num_options);
    require(out, "out") =
        new treadle_data_loader{treadle::train::DataLoader(require(dataset, "dataset").opened.data, made), {}, {}, {}, {}, {}};
  });
}
void treadle_data_loader_release(treadle_data_loader* loader) { delete loader; }

treadle_status* treadle_data_loader_next(treadle_data_loader* loader, int* has_batch) {
  if (has_batch) *has_batch = 0;
  return guarded([&] {
    treadle_data_loader& given = require(loader, "loader");
    (void)require(has_batch, "has_batch");
    given.batch.reset(), given.feeds.clear(), given.labels = {};
    given.batch = given.loader.next();
    if (!given.batch) return;
    std::tie(given.feeds, given.labels) = treadle::train::feeds_and_labels(*given.batch);
    *has_batch = 1;
  });
}
int64_t treadle_data_loader_batch_samples(const treadle_data_loader* loader) {
  return loader && loader->batch && !loader->batch->empty() ? loader->batch->begin()->second.shape()[0] : 0;
}
treadle_status* treadle_data_loader_value(const treadle_data_loader* loader, const char* name, treadle_value** out) {
  return guarded([&] {
    const treadle_data_loader& given = with_batch(loader);
    const auto found = given.batch->find(name ? name : treadle::train::kBatchLabels);
    if (found == given.batch->end())
      throw Error(ErrorCode::not_found, name ? "the batch has no input \"" + std::string(name) + "\"" : "the batch has no labels");
    require(out, "out") = new treadle_value{found->second};
  });
}
int64_t treadle_data_loader_batches_per_epoch(const treadle_data_loader* loader) { return loader ? loader->loader.batches_per_epoch() : 0; }
int64_t treadle_data_loader_epoch(const treadle_data_loader* loader) { return loader ? loader->loader.position().epoch : 0; }

treadle_status* treadle_data_loader_position(treadle_data_loader* loader, const treadle_config_entry** metadata, size_t* num_entries) {
  return guarded([&] {
    treadle_data_loader& given = require(loader, "loader");
    (void)require(metadata, "metadata"), (void)require(num_entries, "num_entries");
    given.position = given.loader.to_metadata();
    given.entries.clear();
    for (const auto& [key, value] : given.position) given.entries.push_back({key.c_str(), value.c_str()});
    *metadata = given.entries.data(), *num_entries = given.entries.size();
  });
}
treadle_status* treadle_data_loader_resume(treadle_data_loader* loader, const treadle_trainer* trainer) {
  return guarded([&] {
    treadle_data_loader& given = require(loader, "loader");
    given.loader.resume(require(trainer, "trainer").metadata);
    given.batch.reset(), given.feeds.clear(), given.labels = {};
  });
}

treadle_status* treadle_trainer_step_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                           const treadle_data_loader* loader, double* loss) {
  return guarded([&] {
    const treadle_data_loader& given = with_batch(loader);
    const double value = require(trainer, "trainer").trainer.step(given.feeds, given.labels, options_of(run_options));
    if (loss) *loss = value;
  });
}
treadle_status* treadle_trainer_evaluate_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                               const treadle_data_loader* loader, double* loss) {
  return guarded([&] {
    const treadle_data_loader& given = with_batch(loader);
    const double value = require(trainer, "trainer").trainer.evaluate(given.feeds, given.labels, options_of(run_options));
    if (loss) *loss = value;
  });
}

}  // extern "C"
