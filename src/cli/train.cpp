// Implements the command `treadle train`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/profile_output.h"
#include "cli/train_loop.h"
#include "cli/trainer_options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

void add_data_options(CLI::App& app, TrainArguments& a) {
  auto list = [&](const char* name, std::vector<std::string>& values, const char* text) {
    return app.add_option(name, values, text)->allow_extra_args(false)->take_all();
  };
  list("--data", a.data.paths,
       ".npz, .safetensors (arrays named as inputs), .csv, INPUT=FILE.npy, or a folder with a folder of pictures for each class; may be "
       "repeated")
      ->required();
  app.add_option("--labels", a.data.labels, "The array (\"labels\" if not given), the column of a .csv, or a .npy file");
  list("--features", a.data.features, "Columns of a .csv, names or patterns; all but the labels if not given; may be repeated");
  app.add_option("--scale", a.data.scale, "Factor for floating-point inputs: 0.0625 maps 0..16 to 0..1")->capture_default_str();
  list("--validation", a.validation, "Fraction of the data to hold out, or files like those of --data");
  app.add_option("--validation-labels", a.validation_labels, "Labels of a validation file, as --labels; the same name if not given");
  app.add_option("--batch-size", a.loader.batch_size, "Samples per step")->check(at_least(1))->capture_default_str();
  app.add_flag("--drop-last", a.loader.drop_last, "Leave out the samples of an epoch that fill no batch");
  app.add_flag_callback(
      "--no-shuffle", [&a] { a.loader.shuffle = false; }, "Keep the order of the samples");
  app.add_option("--seed", a.loader.seed, "Seed for the order and the held-out samples")->capture_default_str();
  app.add_option("--prefetch", a.loader.prefetch, "Batches that a thread reads ahead; 0: none")->check(at_least(0))->capture_default_str();
}

constexpr const char* kRankGroup = "Several processes";

void add_rank_options(CLI::App& app, TrainArguments& a) {
  app.add_option("--communicator", a.communicator,
                 "How processes that train together find each other: mpi, a name that a plugin has registered, or none; mpi if mpirun has "
                 "started several")
      ->group(kRankGroup);
  app.add_option("--communicator-deadline", a.trainer.communicator_deadline_s,
                 "Seconds after which a process that does not answer ends the others")
      ->check(above(0))
      ->capture_default_str()
      ->group(kRankGroup);
  app.add_option("--bucket-bytes", a.trainer.bucket_bytes, "Size of the parts in which gradients are reduced")
      ->check(above(0))
      ->capture_default_str()
      ->group(kRankGroup);
  app.add_option_function<std::string>(
         "--reduction", [&a](const std::string& value) { train::set_option(a.trainer, "reduction", value); },
         "Dtype in which gradients travel and are added: float32 (default) or bfloat16")
      ->group(kRankGroup);
  app.add_flag("--shard-optimizer", a.trainer.shard_optimizer, "Each process keeps the optimizer's state of its share of the parameters")
      ->group(kRankGroup);
}

}  // namespace

Command add_train(CLI::App& app) {
  app.description("Train a model on data: checkpoints, validation, and an inference model in the end");
  auto a = std::make_shared<TrainArguments>();
  app.footer(
      "Example:\n"
      "  treadle train cnn.onnx --data digits.csv --labels target --scale 0.0625 --validation 0.2 --batch-size 64 --epochs 20\n"
      "    --learning-rate 0.05 --momentum 0.9 --schedule cosine --checkpoint runs/1 -o digits.onnx\n"
      "  mpirun -n 2 treadle train ...\n"
      "Ctrl-C writes a checkpoint and ends; the same command with --resume continues with the same bits. See docs/training.md, and "
      "docs/data-parallel.md for several processes.");
  app.add_option("model", a->model, "ONNX file, or a folder of `treadle artifacts`")->required();
  app.add_option("-o,--output", a->output, "File to write the trained model to")->required();
  add_data_options(app, *a);
  app.add_option("--epochs", a->epochs, "Passes over the data")->check(above(0))->capture_default_str();
  add_trainer_options(app, a->trainer);
  add_rank_options(app, *a);
  auto* folder = app.add_option("--checkpoint", a->checkpoint, "Folder to write a checkpoint to after each epoch");
  app.add_option("--checkpoint-steps", a->checkpoint_steps, "Also write a checkpoint every N steps")->check(at_least(0))->needs(folder);
  app.add_option("--keep-last", a->keep_last, "Number of checkpoints to keep; 0: all")
      ->check(at_least(0))
      ->capture_default_str()
      ->needs(folder);
  app.add_flag("--asynchronous", a->asynchronous, "Write checkpoints on a thread")->needs(folder);
  app.add_flag("--resume", a->resume, "Continue from the newest checkpoint, if there is one");
  app.add_option("--patience", a->patience, "Stop after N epochs without a better validation loss, and write the model of the best epoch")
      ->check(at_least(0));
  auto* skips = app.add_flag("--skip-nan", a->skip_nan, "Skip steps with a NaN; by default such a step ends the training");
  app.add_flag("--no-check", a->unchecked, "Do not look for NaN in the values of each node")->excludes(skips);
  auto* log = app.add_option("--log", a->log, "File of JSON lines: start, step, epoch, skipped, interrupted, end");
  app.add_flag_callback(
         "--json", [a] { a->log = "/dev/stdout", a->quiet = true; }, "Print those lines instead of the table")
      ->excludes(log);
  app.add_option("--adapters", a->adapters, "safetensors file for the adapters of --lora-rank");
  app.add_option("--curve", a->curve, "SVG file with the losses of all epochs so far, updated after each epoch");
  app.add_option("--tensorboard", a->tensorboard, "Folder for event files that TensorBoard reads: the numbers of --log over the steps");
  auto* profile =
      app.add_option("--profile", a->profile,
                     "Write a profile of some steps: a page (.html), the profile (.json, .csv), or every event (.pftrace, .trace.json, "
                     ".folded, .speedscope.json); with .gz behind it, compressed");
  app.add_option("--profile-steps", a->profile_steps, "Steps to record, behind the first five")
      ->check(above(0))
      ->capture_default_str()
      ->needs(profile);
  app.add_option("--log-steps", a->log_steps, "Steps between two log lines; 0: no lines for steps")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_flag("-q,--quiet", a->quiet, "Print nothing");
  add_session_options(app, a->trainer.session);
  return [a, &app] {
    for (const CLI::Option* option : app.get_options())
      if (option->count() > 0) {
        a->given.insert(option->get_name());
        if (option->get_group() == kTrainerGroup || option->get_group() == kRankGroup) a->given_to_trainer.insert(option->get_name());
      }
    for (const auto& [option, path] : {std::pair{"--output", a->output}, {"--adapters", a->adapters}, {"--curve", a->curve}})
      check_target(option, path);
    return run_training(*a);
  };
}

}  // namespace treadle::cli
