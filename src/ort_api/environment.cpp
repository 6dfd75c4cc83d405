// The environment: logging, and a thread pool for sessions that do not have their own threads.
#include <algorithm>

#include "ort_api/api.h"

void OrtLogger::log(OrtLoggingLevel severity, const char* location, const char* message) const {
  if (function != nullptr && severity >= level) function(param, severity, "treadle", id.c_str(), location, message);
}

namespace treadle::ort {
namespace {

struct Logging {
  OrtLoggingFunction function = nullptr;
  void* param = nullptr;
};

OrtStatus* make_environment(Logging logging, OrtLoggingLevel level, const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
  return guarded([&] {
    auto made = std::make_unique<OrtEnv>();
    made->logger = {logging.function, logging.param, level, logid != nullptr ? logid : ""};
    if (threading != nullptr) {
      made->threading = *threading;
      made->pool = make_pool(threading->threads, threading->intra_op_num_threads);
    }
    required(out, "out") = made.release();
  });
}

// Checks a struct that the client has filled in. Fields that its version does not have must not be read.
const OrtEnvCreationOptions& checked(const OrtEnvCreationOptions* options) {
  constexpr uint32_t kFirstVersion = 24;
  if (options == nullptr)
    throw Error(ErrorCode::invalid_argument, "CreateEnvWithOptions requires a valid (non-null) OrtEnvCreationOptions argument");
  auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "CreateEnvWithOptions requires a OrtEnvCreationOptions argument with " + what);
  };
  if (options->version < kFirstVersion)
    refuse("the version set equal to ORT_API_VERSION, of 24 or later, not " + std::to_string(options->version));
  if (options->logging_severity_level < ORT_VERBOSE || options->logging_severity_level > ORT_FATAL)
    refuse("a valid logging severity level value from the OrtLoggingLevel enumeration, not " +
           std::to_string(options->logging_severity_level));
  if (options->log_id == nullptr) refuse("a valid (non-null) log identifier string");
  return *options;
}

// Sets a number of threads. If it is below 1, the library chooses the number.
OrtStatus* set_threads(OrtThreadingOptions* options, int OrtThreadingOptions::*number, int threads) {
  return guarded([&] { required(options, "OrtThreadingOptions").*number = std::max(threads, 0); });
}

}  // namespace

void add_environment(OrtApi& table) {
  table.CreateEnv = [](OrtLoggingLevel level, const char* logid, OrtEnv** out) { return make_environment({}, level, logid, nullptr, out); };
  table.CreateEnvWithCustomLogger = [](OrtLoggingFunction function, void* param, OrtLoggingLevel level, const char* logid, OrtEnv** out) {
    return make_environment({function, param}, level, logid, nullptr, out);
  };
  table.CreateEnvWithGlobalThreadPools = [](OrtLoggingLevel level, const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
    return make_environment({}, level, logid, threading, out);
  };
  table.CreateEnvWithCustomLoggerAndGlobalThreadPools = [](OrtLoggingFunction function, void* param, OrtLoggingLevel level,
                                                           const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
    return make_environment({function, param}, level, logid, threading, out);
  };
  table.CreateEnvWithOptions = [](const OrtEnvCreationOptions* options, OrtEnv** out) {
    return guarded([&] {
      const OrtEnvCreationOptions& given = checked(options);
      const auto level = static_cast<OrtLoggingLevel>(given.logging_severity_level);
      check(
          make_environment({given.custom_logging_function, given.custom_logging_param}, level, given.log_id, given.threading_options, out));
    });
  };
  table.ReleaseEnv = [](OrtEnv* environment) { delete environment; };
  // These functions do nothing, because Treadle sends no telemetry.
  table.EnableTelemetryEvents = table.DisableTelemetryEvents = [](const OrtEnv*) -> OrtStatus* { return nullptr; };
  table.SetLanguageProjection = [](const OrtEnv*, OrtLanguageProjection) -> OrtStatus* { return nullptr; };
  table.UpdateEnvWithCustomLogLevel = [](OrtEnv* environment, OrtLoggingLevel level) -> OrtStatus* {
    if (environment != nullptr) environment->logger.level = level;
    return nullptr;
  };

  table.CreateThreadingOptions = [](OrtThreadingOptions** out) {
    return guarded([&] { required(out, "out") = new OrtThreadingOptions(); });
  };
  table.ReleaseThreadingOptions = [](OrtThreadingOptions* options) { delete options; };
  table.SetGlobalIntraOpNumThreads = [](OrtThreadingOptions* options, int threads) {
    return set_threads(options, &OrtThreadingOptions::intra_op_num_threads, threads);
  };
  table.SetGlobalInterOpNumThreads = [](OrtThreadingOptions* options, int threads) {
    return set_threads(options, &OrtThreadingOptions::inter_op_num_threads, threads);
  };
  table.SetGlobalSpinControl = [](OrtThreadingOptions* options, int allow) {
    return guarded([&] {
      if (allow != 0 && allow != 1)
        throw Error(ErrorCode::invalid_argument, "Received invalid value for allow_spinning. Valid values are 0 or 1");
      required(options, "OrtThreadingOptions").allow_spinning = allow != 0;
    });
  };
  table.SetGlobalDenormalAsZero = [](OrtThreadingOptions* options) {
    return guarded([&] { required(options, "OrtThreadingOptions").set_denormal_as_zero = true; });
  };

  table.Logger_LogMessage = [](const OrtLogger* logger, OrtLoggingLevel severity, const char* message, const char* file, int line,
                               const char* function) {
    return guarded([&] {
      const std::string location =
          std::string(file != nullptr ? file : "") + ":" + std::to_string(line) + " " + (function != nullptr ? function : "");
      required(logger, "logger").log(severity, location.c_str(), message);
    });
  };
  table.Logger_GetLoggingSeverityLevel = [](const OrtLogger* logger, OrtLoggingLevel* out) {
    return guarded([&] { required(out, "out") = required(logger, "logger").level; });
  };
  table.GetBuildInfoString = [] {
    static const std::string text = "Treadle " + std::string(version());
    return text.c_str();
  };
}

}  // namespace treadle::ort
