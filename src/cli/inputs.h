// Makes feeds from files, literals or random numbers, as given on the command line.
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

/// The options of all commands that run a model.
struct InputOptions {
  std::vector<std::string> files;       // each has the form NAME=FILE, NAME=LITERAL or FILE
  std::vector<std::string> dimensions;  // each has the form SYMBOL=EXTENT
  std::vector<std::string> shapes;      // each has the form NAME:1x576
  PictureOptions pictures;
  int64_t default_extent = 1;
  std::optional<uint64_t> seed;
  std::string_view setters = "--dim NAME=EXTENT or --shapes INPUT:EXTENTS";  // names of options that set extents, for messages
};

void add_input_options(CLI::App& app, InputOptions& options);
/// Adds the options for random inputs and images, for commands that have separate options for files.
void add_sample_options(CLI::App& app, InputOptions& options);

/// Checks the options that set extents. @throws Error if --dim or --shapes names no input or symbol, or gives a wrong extent.
void check_extents(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// The extents that were assumed because no model, file or option determines them: "N=1", "images axis 2=1".
using AssumedExtents = std::set<std::string>;

struct MadeFeeds {
  std::map<std::string, Datum> values;
  AssumedExtents assumed;  ///< results hold for these extents, so every command prints them
};

/// Makes a value for each input of the model, from its file or literal, or at random: floats in [0, 1), integers 0 or 1, booleans, empty
/// strings. Symbols get their extents from the files.
/// @throws Error naming the input or the file, or an option (for images, seeds or extents) that has no effect.
MadeFeeds make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// Returns "N=1, images axis 2=1", as printed in JSON; empty if nothing was assumed.
std::string joined(const AssumedExtents& assumed);
/// Like joined(), followed by the options that set other extents.
std::string assumed_text(const AssumedExtents& assumed, const InputOptions& options);
/// Prints assumed_text() on a line; prints nothing if no extent was assumed.
void print_assumed(const AssumedExtents& assumed, const InputOptions& options);
/// Calls `run`. If it throws, the extents assumed so far are added to the error, since they are the usual cause.
void with_assumed_extents(const AssumedExtents& assumed, const InputOptions& options, const std::function<void()>& run);

/// Returns "[N, 3, 224, 224]", with "?" for an extent without a name, or "[...]" for an unknown rank.
std::string shape_text(const ValueInfo& info);

/// Returns the file's extension in lower case: ".npz".
std::string extension_of(const std::string& path);

/// Adds the session options that all commands share.
void add_session_options(CLI::App& app, SessionOptions& options);

/// Returns the value's type, range and first elements.
std::string summary(const Datum& datum, int64_t max_elements = 8);

/// Makes the feeds of sample i: from files[i] or, if there is no such file, at random with a seed that depends on i.
/// @param assumed  receives the extents assumed for this sample.
std::map<std::string, Datum> make_sample(const std::vector<ValueInfo>& infos, const InputOptions& options,
                                         const std::vector<std::string>& files, int64_t i, AssumedExtents& assumed);
/// Checks options for samples. @throws Error naming an option that has no effect on any of the `count` samples. The first samples come from
/// the files.
void check_sample_options(const std::vector<ValueInfo>& infos, const InputOptions& options, const std::vector<std::string>& files,
                          int64_t count);
/// Lists the files in the arguments, and in folders in the order of their names. Each file is one sample.
/// @throws Error(not_found) for an empty folder
std::vector<std::string> sample_files(const std::vector<std::string>& paths);

}  // namespace treadle::cli
