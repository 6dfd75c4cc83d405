#include "cli/trainer_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace treadle::cli {

// Under the names that docs/training.md has for them.
void add_trainer_options(CLI::App& app, train::TrainerOptions& options) {
  auto option = [&](const std::string& flag, const char* text) {
    std::string name = flag.substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    return app
        .add_option_function<std::vector<std::string>>(
            flag,
            [&options, name](const std::vector<std::string>& values) {
              for (const std::string& value : values) train::set_option(options, name, value);
            },
            text)
        ->allow_extra_args(false)
        ->take_all()
        ->group(kTrainerGroup);
  };
  auto flag = [&](const char* name, bool train::TrainerOptions::*member, const char* text) {
    app.add_flag(name, options.*member, text)->group(kTrainerGroup);
  };
  option("--loss",
         "softmax_cross_entropy (default), negative_log_likelihood, mean_squared_error, l1, huber, "
         "binary_cross_entropy_with_logits, kl_divergence, ctc, output, or an ONNX file: a graph of the loss, "
         "whose first input takes the scores and the next the labels");
  app.add_option("--loss-of", options.output, "Output, or another value, to compute the loss from; the first output if not given")
      ->group(kTrainerGroup);
  option("--class-axis", "Axis of the classes in the scores; -1 for language models");
  option("--ignore-index", "Label that does not count");
  option("--class-weights", "A weight for each class, separated by commas");
  option("--label-smoothing", "Label smoothing, from 0 to 1");
  option("--huber-delta", "Distance at which huber changes from squared to absolute");
  option("--blank", "Class that is no label, of ctc; default 0");
  option("--optimizer", "Optimizer: sgd (default), adam, adamw, adagrad, rmsprop, lion, lamb");
  option("--learning-rate", "Learning rate; default 0.01");
  option("--momentum", "Momentum of sgd and rmsprop");
  option("--weight-decay", "Weight decay; default 0, for adamw 0.01");
  flag("--nesterov", &train::TrainerOptions::nesterov, "Nesterov momentum, for sgd");
  option("--beta1", "First beta of adam, adamw, lion and lamb"), option("--beta2", "Second beta of adam, adamw, lion and lamb");
  option("--epsilon", "Epsilon of adam, adamw, adagrad, rmsprop and lamb");
  option("--smoothing", "Smoothing of rmsprop (PyTorch's alpha)");
  option("--init-scale", "First scale of the loss, with --option precision=float16; default 65536");
  option("--growth-factor", "Factor by which that scale grows; default 2");
  option("--backoff-factor", "Factor of the scale after a step with an infinite or NaN gradient, which is skipped; default 0.5");
  option("--growth-interval", "Updates without such a step before the scale grows; default 2000");
  option("--clip-value", "Clip each gradient to -VALUE..VALUE");
  option("--clip-norm", "Scale all gradients together down to this norm");
  option("--accumulation-steps", "Number of steps that make one update");
  option("--ema-decay", "Decay, from 0 to 1, of an exponential average of the parameters, which is then validated and saved");
  flag("--ema-statistics", &train::TrainerOptions::ema_statistics, "Average running statistics as well");
  option("--schedule", "Schedule of the learning rate: constant (default), step, cosine, linear, one_cycle");
  option("--warmup-steps", "Updates during which the rate rises");
  option("--total-steps", "Updates of cosine, linear and one_cycle; all of --epochs if not given");
  option("--step-size", "Updates between two reductions by the schedule step");
  option("--gamma", "Factor of each reduction by the schedule step"), option("--final-factor", "Final factor of cosine and linear");
  option("--group", "PATTERN,PATTERN;rate_factor=F;weight_decay=W: settings for these parameters; may be repeated");
  option("--parameters", "Names or patterns of initializers to train, separated by commas; all if not given");
  option("--frozen", "Names or patterns of initializers not to train");
  option("--untied", "Names or patterns of initializers that an exporter merged: each node that reads one gets its own");
  option("--initialize",
         "PATTERN,PATTERN;initializer=NAME;scale=F: parameters that begin with random values (zeros, ones, normal, uniform, xavier_normal, "
         "xavier_uniform, kaiming_normal, kaiming_uniform); may be repeated");
  option("--initialization-seed", "Seed of these values");
  flag("--dynamic-batch", &train::TrainerOptions::dynamic_batch, "Let a model that states one batch size take any");
  option("--head", "Replace the last layer by a new one of this many classes, which begins with random values (--initialization-seed)");
  option("--lora-rank", "Train adapters of this rank beside frozen weights; the output has them merged");
  option("--lora-alpha", "Factor of the adapters, divided by the rank; the rank by default");
  option("--lora-dropout", "Dropout of what the adapters read");
  option("--lora-targets",
         "Names or patterns of weights, or of nodes that read them, separated by commas; by default all of MatMul and Gemm");
  option("--lora-seed", "Seed of the adapters' first values");
  option("--lazy-updates", "Tables of which an update touches only the rows that were read: names or patterns, separated by commas");
  option("--memory-fraction",
         "Share, up to 1, of what a step's activations take otherwise; steps compute values twice or write them to a file");
  option("--recompute-fraction",
         "Share, up to 1, of a step's time, as estimated, that may go into values which are computed twice, for less memory; by default up "
         "to 0.1, as far as it pays");
  flag("--fused-update", &train::TrainerOptions::fused_update, "Update all parameters in one node");
  flag("--early-updates", &train::TrainerOptions::early_updates, "Update each parameter as soon as its gradient is there");
}

}  // namespace treadle::cli
