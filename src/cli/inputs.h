// Feeds from files or random numbers, as the command line names them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "treadle/session.h"

namespace CLI {
class App;
}

namespace treadle::cli {

/// The options that all commands share which run a model.
struct InputOptions {
  std::vector<std::string> files;       // NAME=FILE or FILE
  std::vector<std::string> dimensions;  // SYMBOL=EXTENT
  int64_t default_extent = 1;
  uint64_t seed = 0;
};

void add_input_options(CLI::App& app, InputOptions& options);

/// One value per input of the model: from its file, or random (floats in [0, 1), integers 0 or 1, bools, empty strings).
/// @throws Error naming the input or the file.
std::map<std::string, Datum> make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// Of a file's name, in small letters: ".npz".
std::string extension_of(const std::string& path);
/// A picture in the layout of the input: NCHW or NHWC by where 1 or 3 channels stand; floats are divided by 255. With a batch of 1 where
/// the input has one. @throws Error for a file that is no picture, and an input that takes none.
Tensor image_for(const ValueInfo& info, const std::string& path);

/// Options of sessions that all commands share.
void add_session_options(CLI::App& app, SessionOptions& options);

/// First elements of a value, its type, and its range.
std::string summary(const Datum& datum, int64_t max_elements = 8);

/// The feeds of sample i: from files[i], or random where there are no so many files, each with a seed of its own.
std::map<std::string, Datum> make_sample(const std::vector<ValueInfo>& infos, const InputOptions& options,
                                         const std::vector<std::string>& files, int64_t i);
/// The files of the arguments and folders, one sample each, in order of their names.
/// @throws Error(not_found) for a folder without any
std::vector<std::string> sample_files(const std::vector<std::string>& paths);

}  // namespace treadle::cli
