#pragma once

/// The border between shardrun and its plugins: what every kind of plugin exports and is given.
/// The kinds add one header each: strategy.h, transport.h.
///
/// Rules that hold for this header and those:
///  - Within major 1 things are appended, never reordered, retyped, removed or given a new meaning.
///  - Every struct begins with `struct_size`, set by whoever fills it in. A field is there when
///    SR_HAS says so; a struct smaller than its SR_..._SIZE_1_0 is refused; a larger one is newer.
///  - Whoever fills a struct in zeroes it first. Zero in a field means what its absence means.
///  - Arrays of structs travel as pointer, count and stride (the writer's sizeof): step by the stride.
///  - Enumerations are uint32_t. A value is never reused, those from 0x80000000 on are the vendors', and a
///    value that is not known is refused or skipped, as the field says.
///  - Text is UTF-8 ended by a NUL. Memory is freed by the side that allocated it.
///  - Every function takes the `self` it was delivered with. No exception and no longjmp leaves one.
///  - INIT: called serially, by one thread at a time. GROUP: serially for one group. ANY: from any thread.

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "the plugin ABI is laid out for 64-bit pointers"
#endif

#if defined(__GNUC__)
#define SR_EXPORT __attribute__((visibility("default")))
#else
#define SR_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SR_ABI_MAJOR UINT32_C(1)
#define SR_ABI_MINOR UINT32_C(5)

/// Whether the struct behind `p`, a `type`, was written by a side that knew `field`.
#define SR_HAS(p, type, field) ((p)->struct_size >= offsetof(type, field) + sizeof(((const type*)0)->field))

/// Status of a call: zero, a positive state where the function says so, or negative for an error.
#define SR_OK INT32_C(0)
#define SR_PENDING INT32_C(1)        /* not complete yet */
#define SR_INVALID INT32_C(-1)       /* what was asked for cannot be: the job has to change */
#define SR_INTERNAL INT32_C(-2)      /* the callee failed */
#define SR_UNIMPLEMENTED INT32_C(-3) /* the callee does not offer this; the caller may have another way */
#define SR_TIMEOUT INT32_C(-4)       /* the deadline passed */
#define SR_ABORTED INT32_C(-5)       /* somebody ended it on purpose */
#define SR_PEER_LOST INT32_C(-6)     /* a peer is gone or cannot be reached */

/// Where a failing function leaves its reason. The caller owns it, sets struct_size and zeroes the rest. The callee
/// writes a sentence that names what was expected, what was found and what to do, cut to fit. The host shows the text
/// and never reads facts out of it: those are fields.
typedef struct sr_error {
  uint32_t struct_size;
  char text[508];
  uint32_t awaited; /* since 1.5: of a transport, 1 + the rank that was waited for in vain or is gone; 0: not known */
} sr_error;
#define SR_ERROR_SIZE_1_0 UINT32_C(512)

#define SR_MAGIC UINT32_C(0x4E555253) /* "SRUN" in a dump of a little-endian file */

#define SR_KIND_STRATEGY UINT32_C(1)
#define SR_KIND_TRANSPORT UINT32_C(2)
/* 3 is for engines. */

/// Who a plugin is. It holds no pointer, so that it can be read from the file before any of its code runs.
typedef struct sr_manifest {
  uint32_t struct_size;
  uint32_t magic; /* SR_MAGIC */
  uint32_t major; /* SR_ABI_MAJOR and SR_ABI_MINOR of the headers it was built from */
  uint32_t minor;
  uint32_t min_host_minor; /* the oldest host that it works with */
  uint32_t kind;           /* SR_KIND_... */
  char name[64];           /* [a-z0-9_-]+; the file is shardrun_KIND_NAME.so */
  char version[32];        /* the plugin's own, for people */
  char aliases[128];       /* since 1.3: what other programs call it, with spaces between them: "fsdp fsdp2". An error
                              about such a name leads to this plugin; it is not found by it. */
} sr_manifest;
#define SR_MANIFEST_SIZE_1_0 UINT32_C(120)

#define SR_OPTION_BOOLEAN UINT32_C(1)
#define SR_OPTION_INTEGER UINT32_C(2)
#define SR_OPTION_NUMBER UINT32_C(3)
#define SR_OPTION_TEXT UINT32_C(4)

#define SR_OPTION_TEXT_FILE UINT32_C(1) /* a text that is none of the choices is the path of a text file */
#define SR_OPTION_TRANSPORT UINT32_C(2) /* since 1.2: a text that names a transport, which this one opens */

/// A key that the plugin understands in its section of the job file. The host parses, checks and documents it.
/// Bounds are inclusive; a minimum and a maximum that are both zero bound nothing.
typedef struct sr_option {
  uint32_t struct_size;
  uint32_t type;           /* SR_OPTION_..., and which of the fields below count */
  const char* name;        /* [a-z][a-z0-9_]* */
  const char* help;        /* one line */
  int64_t default_integer; /* also a boolean's: 0 or 1 */
  int64_t min_integer;
  int64_t max_integer;
  double default_number;
  double min_number;
  double max_number;
  const char* default_text;   /* NULL is "" */
  const char* const* choices; /* of a text; none: any text */
  uint32_t choice_count;
  uint32_t reserved;   /* zero */
  uint32_t flags;      /* since 1.1: of SR_OPTION_TEXT_FILE, ..._TRANSPORT; unknown ones are skipped */
  uint32_t reserved_1; /* zero */
  const char* aliases; /* since 1.3: what other programs call it, as of the manifest; NULL: nothing */
} sr_option;
#define SR_OPTION_SIZE_1_0 UINT32_C(96)

/// An option's value. Every declared option is delivered, with its default where the job is silent.
typedef struct sr_option_value {
  uint32_t struct_size;
  uint32_t type;
  const char* name;
  int64_t integer; /* also a boolean's: 0 or 1 */
  double number;
  const char* text;     /* of a file: its absolute path, for messages */
  const char* contents; /* of a file named by an option with SR_OPTION_TEXT_FILE, UTF-8; NULL: a choice; since 1.1 */
} sr_option_value;
#define SR_OPTION_VALUE_SIZE_1_0 UINT32_C(40)

#define SR_LOG_INFO UINT32_C(1)
#define SR_LOG_WARNING UINT32_C(2)

/// What a plugin may call at any time between its opening and its closing. The host owns it.
typedef struct sr_host {
  uint32_t struct_size;
  uint32_t minor; /* SR_ABI_MINOR of the host */
  void* self;
  /// ANY. One line of text, copied before the call returns; an unknown level is a warning.
  void (*log)(void* self, uint32_t level, const char* text);
} sr_host;
#define SR_HOST_SIZE_1_0 UINT32_C(24)

/// An opened plugin. The plugin owns it, and all that it points to, until close returns.
typedef struct sr_plugin {
  uint32_t struct_size;
  uint32_t kind;         /* the manifest's, and the type of `functions` */
  void* self;            /* first argument of every function of the plugin */
  const void* functions; /* SR_KIND_STRATEGY: const sr_strategy*, SR_KIND_TRANSPORT: const sr_transport* */
  const sr_option* options;
  uint32_t option_count;
  uint32_t option_stride;
  /// INIT. Frees the plugin; nothing of it is called or read afterwards. The file stays loaded.
  void (*close)(void* self);
} sr_plugin;
#define SR_PLUGIN_SIZE_1_0 UINT32_C(48)

/// The two symbols of a plugin.
SR_EXPORT extern const sr_manifest shardrun_manifest_v1;

/// INIT. Makes an instance; cheap and without side effects (no thread, file or socket), because listing the
/// plugins opens them all. `host` stays valid until close. On an error `*plugin` is left alone.
SR_EXPORT int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin);

#ifdef __cplusplus
}
#endif
