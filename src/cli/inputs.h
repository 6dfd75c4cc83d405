// Makes the values of a model's inputs from files, literals or random numbers, as the command line says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/pictures.h"
#include "treadle/session.h"

namespace CLI {
class App;
}

namespace treadle::cli {

/// The options for inputs that all commands which run a model have.
struct InputOptions {
  std::vector<std::string> files;       // each has the form NAME=FILE, NAME=LITERAL or FILE
  std::vector<std::string> dimensions;  // each has the form SYMBOL=EXTENT
  std::vector<std::string> shapes;      // each has the form NAME:1x576
  PictureOptions pictures;
  int64_t default_extent = 1;
  std::optional<uint64_t> seed;
  std::string_view setters = "--dim NAME=EXTENT or --shapes INPUT:EXTENTS";  // the options that set extents, as messages name them
};

void add_input_options(CLI::App& app, InputOptions& options);
/// Adds only the options for random inputs and for images, for commands that have their own options for files.
void add_sample_options(CLI::App& app, InputOptions& options);

/// Checks the options that set extents. @throws Error if --dim or --shapes names an unknown input or symbol, or gives a wrong extent.
void check_extents(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// The extents that were assumed because no model, file or option determines them, as texts such as "N=1" or "images axis 2=1".
using AssumedExtents = std::set<std::string>;

struct MadeFeeds {
  std::map<std::string, Datum> values;
  AssumedExtents assumed;  ///< printed by every command, because its results hold for these extents
};

/// Makes a value for each input of the model from its file or literal. Other inputs get random values: floats in [0, 1), integers 0 or 1,
/// booleans, or empty strings. Symbolic extents follow from the files.
/// @throws Error that names the input or the file, or an option (for images, seeds or extents) that has no effect.
MadeFeeds make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// Returns the assumed extents as one text, such as "N=1, images axis 2=1"; empty if nothing was assumed.
std::string joined(const AssumedExtents& assumed);
/// Like joined(), but followed by the names of the options that set other extents.
std::string assumed_text(const AssumedExtents& assumed, const InputOptions& options);
/// Prints a line with assumed_text(), or nothing if no extent was assumed.
void print_assumed(const AssumedExtents& assumed, const InputOptions& options);
/// Calls `run`. If it throws, adds the assumed extents to the error, because they are the usual cause.
void with_assumed_extents(const AssumedExtents& assumed, const InputOptions& options, const std::function<void()>& run);

/// Returns an input's shape, such as "[N, 3, 224, 224]", with "?" for an extent without a name; "[...]" if the rank is unknown.
std::string shape_text(const ValueInfo& info);

/// Returns the file's extension in lower case, such as ".npz".
std::string extension_of(const std::string& path);

/// Adds the session options that all commands share.
void add_session_options(CLI::App& app, SessionOptions& options);

/// Returns a text with the value's type, range and first elements.
std::string summary(const Datum& datum, int64_t max_elements = 8);

/// Makes the inputs of sample i: from files[i] or, if there are not so many files, at random with a seed that depends on i.
/// @param assumed  receives the extents that were assumed for this sample.
std::map<std::string, Datum> make_sample(const std::vector<ValueInfo>& infos, const InputOptions& options,
                                         const std::vector<std::string>& files, int64_t i, AssumedExtents& assumed);
/// Checks the options for `count` samples, of which the first come from the files. @throws Error that names an option which has no effect
/// on any sample.
void check_sample_options(const std::vector<ValueInfo>& infos, const InputOptions& options, const std::vector<std::string>& files,
                          int64_t count);
/// Returns the files that `paths` name. A folder stands for all of its files, sorted by name. Each file is one sample.
/// @throws Error(not_found) for an empty folder
std::vector<std::string> sample_files(const std::vector<std::string>& paths);

}  // namespace treadle::cli
