/* Compiled only: xla_ffi.h says what XLA's own header says. */
#include "xla/ffi/api/c_api.h"
#include "xla_ffi.h"

#define SAME_FIELD(theirs, field, ours, own)                                                       \
    _Static_assert(offsetof(theirs, field) == offsetof(ours, own), #theirs "." #field);            \
    _Static_assert(sizeof(((theirs *)0)->field) == sizeof(((ours *)0)->own), #theirs "." #field)
#define SAME_NUMBER(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #theirs)

/* A structure of arguments is passed by its size, so its last field is the one that counts. */
#define SAME_SIZE(theirs, ours, last)                                                              \
    _Static_assert((size_t)theirs##_STRUCT_SIZE == FFI_SIZE(ours, last), #theirs)

SAME_NUMBER(XLA_FFI_API_MAJOR, FFI_MAJOR);
_Static_assert(XLA_FFI_API_MINOR >= FFI_MINOR, "the version that handlers ask for");

SAME_FIELD(XLA_FFI_Api_Version, major_version, ffi_version, major);
SAME_FIELD(XLA_FFI_Api_Version, minor_version, ffi_version, minor);

SAME_FIELD(XLA_FFI_Metadata_Extension, extension_base.type, ffi_metadata_extension, base.type);
SAME_FIELD(XLA_FFI_Metadata_Extension, extension_base.next, ffi_metadata_extension, base.next);
SAME_FIELD(XLA_FFI_Metadata_Extension, metadata, ffi_metadata_extension, metadata);
SAME_NUMBER(XLA_FFI_Extension_Metadata, FFI_METADATA);
SAME_FIELD(XLA_FFI_Metadata, api_version, ffi_metadata, version);
SAME_FIELD(XLA_FFI_Metadata, traits, ffi_metadata, traits);
SAME_FIELD(XLA_FFI_Metadata, state_type_id, ffi_metadata, state);
SAME_NUMBER(XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE, FFI_COMMAND_BUFFER_COMPATIBLE);

SAME_FIELD(XLA_FFI_ByteSpan, ptr, ffi_span, data);
SAME_FIELD(XLA_FFI_ByteSpan, len, ffi_span, size);

SAME_FIELD(XLA_FFI_Buffer, dtype, ffi_buffer, dtype);
SAME_FIELD(XLA_FFI_Buffer, data, ffi_buffer, data);
SAME_FIELD(XLA_FFI_Buffer, rank, ffi_buffer, rank);
SAME_FIELD(XLA_FFI_Buffer, dims, ffi_buffer, dims);

SAME_FIELD(XLA_FFI_Args, size, ffi_buffers, size);
SAME_FIELD(XLA_FFI_Args, types, ffi_buffers, types);
SAME_FIELD(XLA_FFI_Args, args, ffi_buffers, values);
SAME_NUMBER(XLA_FFI_ArgType_BUFFER, FFI_IS_BUFFER);
SAME_FIELD(XLA_FFI_Rets, size, ffi_buffers, size);
SAME_FIELD(XLA_FFI_Rets, types, ffi_buffers, types);
SAME_FIELD(XLA_FFI_Rets, rets, ffi_buffers, values);
SAME_NUMBER(XLA_FFI_RetType_BUFFER, FFI_IS_BUFFER);

SAME_FIELD(XLA_FFI_Attrs, size, ffi_attributes, size);
SAME_FIELD(XLA_FFI_Attrs, types, ffi_attributes, types);
SAME_FIELD(XLA_FFI_Attrs, names, ffi_attributes, names);
SAME_FIELD(XLA_FFI_Attrs, attrs, ffi_attributes, values);
SAME_NUMBER(XLA_FFI_AttrType_DICTIONARY, FFI_IS_DICTIONARY);
SAME_NUMBER(XLA_FFI_AttrType_STRING, FFI_IS_STRING);

SAME_FIELD(XLA_FFI_CallFrame, extension_start, ffi_call, extensions);
SAME_FIELD(XLA_FFI_CallFrame, api, ffi_call, api);
SAME_FIELD(XLA_FFI_CallFrame, ctx, ffi_call, context);
SAME_FIELD(XLA_FFI_CallFrame, stage, ffi_call, stage);
SAME_FIELD(XLA_FFI_CallFrame, args, ffi_call, arguments);
SAME_FIELD(XLA_FFI_CallFrame, rets, ffi_call, results);
SAME_FIELD(XLA_FFI_CallFrame, attrs, ffi_call, attributes);
SAME_NUMBER(XLA_FFI_ExecutionStage_INSTANTIATE, FFI_INSTANTIATE);
SAME_NUMBER(XLA_FFI_ExecutionStage_PREPARE, FFI_PREPARE);
SAME_NUMBER(XLA_FFI_ExecutionStage_INITIALIZE, FFI_INITIALIZE);
SAME_NUMBER(XLA_FFI_ExecutionStage_EXECUTE, FFI_EXECUTE);

SAME_SIZE(XLA_FFI_Error_Create_Args, ffi_error_args, code);
SAME_FIELD(XLA_FFI_Error_Create_Args, message, ffi_error_args, message);
SAME_NUMBER(XLA_FFI_Error_Code_INVALID_ARGUMENT, FFI_INVALID_ARGUMENT);
SAME_NUMBER(XLA_FFI_Error_Code_NOT_FOUND, FFI_NOT_FOUND);
SAME_NUMBER(XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, FFI_RESOURCE_EXHAUSTED);
SAME_NUMBER(XLA_FFI_Error_Code_FAILED_PRECONDITION, FFI_FAILED_PRECONDITION);
SAME_NUMBER(XLA_FFI_Error_Code_INTERNAL, FFI_INTERNAL);
SAME_NUMBER(XLA_FFI_Error_Code_DATA_LOSS, FFI_DATA_LOSS);

SAME_SIZE(XLA_FFI_Stream_Get_Args, ffi_stream_args, stream);
SAME_FIELD(XLA_FFI_Stream_Get_Args, ctx, ffi_stream_args, context);
SAME_SIZE(XLA_FFI_DeviceOrdinal_Get_Args, ffi_ordinal_args, ordinal);
SAME_FIELD(XLA_FFI_DeviceOrdinal_Get_Args, ctx, ffi_ordinal_args, context);
SAME_SIZE(XLA_FFI_TypeInfo, ffi_type_info, destroy);
SAME_FIELD(XLA_FFI_TypeId, type_id, ffi_type_id, number);
SAME_FIELD(XLA_FFI_Type_Register_Args, name, ffi_type_args, name);
SAME_FIELD(XLA_FFI_Type_Register_Args, type_id, ffi_type_args, id);
SAME_FIELD(XLA_FFI_Type_Register_Args, type_info, ffi_type_args, info);
SAME_SIZE(XLA_FFI_State_Set_Args, ffi_state_args, state);
SAME_SIZE(XLA_FFI_State_Get_Args, ffi_state_args, state);
SAME_FIELD(XLA_FFI_State_Get_Args, stage, ffi_state_args, stage);
SAME_FIELD(XLA_FFI_State_Get_Args, type_id, ffi_state_args, id);

SAME_FIELD(XLA_FFI_Api, api_version, ffi_api, version);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_Error_Create, ffi_api, create_error);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_Error_Destroy, ffi_api, destroy_error);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_Stream_Get, ffi_api, stream);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_Type_Register, ffi_api, register_type);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_State_Set, ffi_api, set_state);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_State_Get, ffi_api, get_state);
SAME_FIELD(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get, ffi_api, device_ordinal);

/* Each number of FFI_DTYPES is that of a name in XLA. */
#define SAME_DTYPE(number, name, bits) DTYPE_##number = number,
enum { FFI_DTYPES(SAME_DTYPE) };
SAME_NUMBER(XLA_FFI_DataType_PRED, DTYPE_1);
SAME_NUMBER(XLA_FFI_DataType_S1, DTYPE_30);
SAME_NUMBER(XLA_FFI_DataType_S2, DTYPE_26);
SAME_NUMBER(XLA_FFI_DataType_S4, DTYPE_21);
SAME_NUMBER(XLA_FFI_DataType_S8, DTYPE_2);
SAME_NUMBER(XLA_FFI_DataType_S16, DTYPE_3);
SAME_NUMBER(XLA_FFI_DataType_S32, DTYPE_4);
SAME_NUMBER(XLA_FFI_DataType_S64, DTYPE_5);
SAME_NUMBER(XLA_FFI_DataType_U1, DTYPE_31);
SAME_NUMBER(XLA_FFI_DataType_U2, DTYPE_27);
SAME_NUMBER(XLA_FFI_DataType_U4, DTYPE_22);
SAME_NUMBER(XLA_FFI_DataType_U8, DTYPE_6);
SAME_NUMBER(XLA_FFI_DataType_U16, DTYPE_7);
SAME_NUMBER(XLA_FFI_DataType_U32, DTYPE_8);
SAME_NUMBER(XLA_FFI_DataType_U64, DTYPE_9);
SAME_NUMBER(XLA_FFI_DataType_F16, DTYPE_10);
SAME_NUMBER(XLA_FFI_DataType_F32, DTYPE_11);
SAME_NUMBER(XLA_FFI_DataType_F64, DTYPE_12);
SAME_NUMBER(XLA_FFI_DataType_BF16, DTYPE_16);
SAME_NUMBER(XLA_FFI_DataType_C64, DTYPE_15);
SAME_NUMBER(XLA_FFI_DataType_C128, DTYPE_18);
SAME_NUMBER(XLA_FFI_DataType_F8E5M2, DTYPE_19);
SAME_NUMBER(XLA_FFI_DataType_F8E3M4, DTYPE_29);
SAME_NUMBER(XLA_FFI_DataType_F8E4M3, DTYPE_28);
SAME_NUMBER(XLA_FFI_DataType_F8E4M3FN, DTYPE_20);
SAME_NUMBER(XLA_FFI_DataType_F8E4M3B11FNUZ, DTYPE_23);
SAME_NUMBER(XLA_FFI_DataType_F8E5M2FNUZ, DTYPE_24);
SAME_NUMBER(XLA_FFI_DataType_F8E4M3FNUZ, DTYPE_25);
SAME_NUMBER(XLA_FFI_DataType_F4E2M1FN, DTYPE_32);
SAME_NUMBER(XLA_FFI_DataType_F8E8M0FNU, DTYPE_33);
