// The context of a caller's callbacks.
#pragma once

namespace treadle::c_api {

/// Holds the context that a caller gave with its callbacks, and calls `release` with the last function that holds it.
struct CallbackContext {
  void* context = nullptr;
  void (*release)(void* context) = nullptr;  ///< set when nothing can fail any more; may stay null

  CallbackContext() = default;
  CallbackContext(const CallbackContext&) = delete;
  CallbackContext& operator=(const CallbackContext&) = delete;
  ~CallbackContext() {
    if (release) release(context);
  }
};

}  // namespace treadle::c_api
