#pragma once

/// The interface between shardrun and its plugins: what a plugin of any kind exports and receives. Each kind has its
/// own header: strategy.h, transport.h, model.h, engine.h.
///
/// Rules for this header and those:
///  - Within major 1 things are only appended. Nothing is reordered, retyped, removed or given a new meaning.
///  - Every struct begins with `struct_size`, set by the side that fills it in. SR_HAS tells whether a field exists.
///    A struct smaller than its SR_..._SIZE_1_0 is refused. A larger one comes from a newer side.
///  - The side that fills in a struct zeroes it first. Zero in a field means the same as its absence.
///  - Arrays of structs are passed as pointer, count and stride (the writer's sizeof). Step by the stride.
///  - Enumerations are uint32_t. A value is never reused. Values from 0x80000000 on are for vendors. An unknown value
///    is refused or skipped, as the field says.
///  - Text is UTF-8, ended by a NUL. The side that allocated memory frees it.
///  - Every function takes as its first argument the `self` of its struct; a plugin's functions take sr_plugin.self.
///  - No exception and no longjmp may leave a function.
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
#define SR_ABI_MINOR UINT32_C(9)

/// Whether the side that wrote the struct at `p`, of type `type`, knew `field`.
#define SR_HAS(p, type, field) ((p)->struct_size >= offsetof(type, field) + sizeof(((const type*)0)->field))

/// The status that a call returns: zero; a positive state if the function says so; or a negative error.
#define SR_OK INT32_C(0)
#define SR_PENDING INT32_C(1)        /* not complete yet */
#define SR_INVALID INT32_C(-1)       /* the request is impossible: the job has to change */
#define SR_INTERNAL INT32_C(-2)      /* the callee failed */
#define SR_UNIMPLEMENTED INT32_C(-3) /* the callee does not offer this; the caller can try another way */
#define SR_TIMEOUT INT32_C(-4)       /* the deadline passed */
#define SR_ABORTED INT32_C(-5)       /* something ended it on purpose */
#define SR_PEER_LOST INT32_C(-6)     /* a peer has ended or cannot be reached */

/// Receives the reason of a failed call. The caller owns it, sets struct_size and zeroes the rest. The callee writes a
/// sentence that says what was expected, what was found and what to do, cut to fit. The host shows the text but takes
/// no facts from it; facts are in the other fields.
typedef struct sr_error {
  uint32_t struct_size;
  char text[508];
  uint32_t awaited; /* since 1.5: for a transport, 1 + the rank that is lost or was waited for; 0: not known */
  char setting[64]; /* since 1.7: with SR_INVALID of a model or an engine, the setting at fault in the job file, as
                       "model.width", or a section, as "data"; empty: not known. The host shows where it is set. */
} sr_error;
#define SR_ERROR_SIZE_1_0 UINT32_C(512)

#define SR_MAGIC UINT32_C(0x4E555253) /* "SRUN" in a dump of a little-endian file */

#define SR_KIND_STRATEGY UINT32_C(1)
#define SR_KIND_TRANSPORT UINT32_C(2)
#define SR_KIND_ENGINE UINT32_C(3) /* since 1.7 */
#define SR_KIND_MODEL UINT32_C(4)  /* since 1.7 */

/// Identifies a plugin. It holds no pointer, so it can be read from the file before any of the plugin's code runs.
typedef struct sr_manifest {
  uint32_t struct_size;
  uint32_t magic; /* SR_MAGIC */
  uint32_t major; /* SR_ABI_MAJOR and SR_ABI_MINOR of the headers it was built with */
  uint32_t minor;
  uint32_t min_host_minor; /* the lowest SR_ABI_MINOR of a host that it works with */
  uint32_t kind;           /* SR_KIND_... */
  char name[64];           /* [a-z0-9_-]+; the file is shardrun_KIND_NAME.so */
  char version[32];        /* of the plugin itself, for people */
  char aliases[128];       /* since 1.3: its names in other programs, separated by spaces: "fsdp fsdp2". Only error
                              messages use them, to suggest this plugin; they do not find it. */
} sr_manifest;
#define SR_MANIFEST_SIZE_1_0 UINT32_C(120)

#define SR_OPTION_BOOLEAN UINT32_C(1)
#define SR_OPTION_INTEGER UINT32_C(2)
#define SR_OPTION_NUMBER UINT32_C(3)
#define SR_OPTION_TEXT UINT32_C(4)

#define SR_OPTION_TEXT_FILE UINT32_C(1) /* a text that is not a choice is the path of a text file */
#define SR_OPTION_TRANSPORT UINT32_C(2) /* since 1.2: names a transport, which this one opens */
/* The next four are since 1.7. REQUIRED: no default; a job that does not set the option is refused. OPTIONAL: no
 * default; if the job does not set the option, it has no value. */
#define SR_OPTION_REQUIRED UINT32_C(4)
#define SR_OPTION_OPTIONAL UINT32_C(8)
#define SR_OPTION_MINIMUM_EXCLUDED UINT32_C(16)
#define SR_OPTION_MAXIMUM_EXCLUDED UINT32_C(32)

/// A name that an option, or one of its choices, has in another program. Since 1.7. The host does not accept this name,
/// but its error suggests the right one.
typedef struct sr_alias {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  const char* choice; /* the choice that it stands for; NULL: the option itself */
  const char* note;   /* how the other name's meaning differs; NULL: not at all */
} sr_alias;
#define SR_ALIAS_SIZE_1_7 UINT32_C(32)

/// A key of the plugin's section in the job file. The host parses, checks and documents it. Bounds are inclusive unless
/// `flags` exclude them. A minimum and a maximum that are both zero mean no bounds.
typedef struct sr_option {
  uint32_t struct_size;
  uint32_t type;           /* SR_OPTION_...; decides which fields below are used */
  const char* name;        /* [a-z][a-z0-9_]* */
  const char* help;        /* one line */
  int64_t default_integer; /* also a boolean's: 0 or 1 */
  int64_t min_integer;
  int64_t max_integer;
  double default_number;
  double min_number;
  double max_number;
  const char* default_text;   /* NULL is "" */
  const char* const* choices; /* for a text; none: any text */
  uint32_t choice_count;
  uint32_t reserved;   /* zero */
  uint32_t flags;      /* since 1.1: SR_OPTION_TEXT_FILE, ..._TRANSPORT; unknown ones are skipped */
  uint32_t reserved_1; /* zero */
  const char* aliases; /* since 1.3: its names in other programs, as in the manifest; NULL: none */
  /* Since 1.7: further names in other programs, with notes. */
  const sr_alias* other_names;
  uint32_t other_name_count;
  uint32_t other_name_stride;
} sr_option;
#define SR_OPTION_SIZE_1_0 UINT32_C(96)

/// An option's value. The host passes every declared option, with its default if the job file does not set it. Only an
/// option without a default can be missing.
typedef struct sr_option_value {
  uint32_t struct_size;
  uint32_t type;
  const char* name;
  int64_t integer; /* also a boolean's: 0 or 1 */
  double number;
  const char* text;     /* for a file: its absolute path, for messages */
  const char* contents; /* since 1.1: of the file that an SR_OPTION_TEXT_FILE names, UTF-8; NULL: a choice */
} sr_option_value;
#define SR_OPTION_VALUE_SIZE_1_0 UINT32_C(40)

/// The element type of a tensor. A model sees real numbers as float32, even if the job stores them with fewer bits.
#define SR_ELEMENT_F32 UINT32_C(1)
#define SR_ELEMENT_I32 UINT32_C(2)
#define SR_ELEMENT_F64 UINT32_C(3) /* since 1.7: in float64 kernels of ops; since 1.9: in arrays of engines */
/* Since 1.9, only for arrays of engines (sr_array) */
#define SR_ELEMENT_BF16 UINT32_C(4)
#define SR_ELEMENT_F16 UINT32_C(5)
#define SR_ELEMENT_I64 UINT32_C(6)
#define SR_ELEMENT_U8 UINT32_C(7)

#define SR_TENSOR_PARAMETER UINT32_C(1)
#define SR_TENSOR_STATE UINT32_C(2) /* kept from step to step but not trained, such as a simulated field */
#define SR_TENSOR_CACHE UINT32_C(3) /* since 1.9: pages of keys or values of past tokens; strategies see ..._STATE */

#define SR_LOG_INFO UINT32_C(1)
#define SR_LOG_WARNING UINT32_C(2)

/// Functions of the host that a plugin may call at any time between its opening and its closing. The host owns it.
typedef struct sr_host {
  uint32_t struct_size;
  uint32_t minor; /* SR_ABI_MINOR of the host */
  void* self;
  /// ANY. Logs one line of text, which is copied before the call returns. An unknown level counts as a warning.
  void (*log)(void* self, uint32_t level, const char* text);
} sr_host;
#define SR_HOST_SIZE_1_0 UINT32_C(24)

/// An opened plugin. The plugin owns it and everything it points to, until close returns.
typedef struct sr_plugin {
  uint32_t struct_size;
  uint32_t kind;         /* the manifest's; decides the type of `functions` */
  void* self;            /* first argument of every function of the plugin */
  const void* functions; /* SR_KIND_STRATEGY: const sr_strategy*, ..._TRANSPORT: const sr_transport*, and so on */
  const sr_option* options;
  uint32_t option_count;
  uint32_t option_stride;
  /// INIT. Frees the plugin. The host neither calls nor reads it afterwards. The file stays loaded.
  void (*close)(void* self);
} sr_plugin;
#define SR_PLUGIN_SIZE_1_0 UINT32_C(48)

/// The two symbols that a plugin exports.
SR_EXPORT extern const sr_manifest shardrun_manifest_v1;

/// INIT. Makes an instance. It must be cheap and must not start a thread or open a file or socket, because listing the
/// plugins opens all of them. `host` stays valid until close. On an error `*plugin` is left unchanged.
SR_EXPORT int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin);

#ifdef __cplusplus
}
#endif
