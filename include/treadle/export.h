// Marks the symbols that the shared library exports. All others have hidden visibility.
#pragma once

#if defined(TREADLE_STATIC)
#define TREADLE_API
#elif defined(_WIN32)
#define TREADLE_API __declspec(dllexport)
#else
#define TREADLE_API __attribute__((visibility("default")))
#endif
