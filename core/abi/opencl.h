/* The OpenCL calls of the runtime, from the dispatch table that the first word of every ICD object points to. So the
 * runtime links against no loader and works with objects of any loader. The Khronos ICD
 * specification has the indices. */
#ifndef CLGRAFT_OPENCL_H
#define CLGRAFT_OPENCL_H

#include <stddef.h>
#include <stdint.h>

typedef void *cl_object;

#define CL_MEM_READ_WRITE_ (1u << 0)
#define CL_MEM_USE_HOST_PTR_ (1u << 3)
#define CL_MEM_ALLOC_HOST_PTR_ (1u << 4)
#define CL_MEM_COPY_HOST_PTR_ (1u << 5)
#define CL_MAP_READ_ (1u << 0)
#define CL_MAP_WRITE_ (1u << 1)
#define CL_QUEUE_DEVICE_ 0x1091
#define CL_EVENT_STATUS_ 0x11D3
#define CL_COMPLETE_ 0
#define CL_KERNEL_REFERENCES_ 0x1192
#define CL_MEM_SIZE_ 0x1102
#define CL_MEM_CONTEXT_ 0x1106

#define CL_TABLE(object) (*(void ***)(object))
#define CL_CALL(object, index, type) ((type)CL_TABLE(object)[index])

typedef int32_t (*cl_reference_fn)(cl_object);
#define cl_retain_context(c) CL_CALL(c, 6, cl_reference_fn)(c)
#define cl_release_context(c) CL_CALL(c, 7, cl_reference_fn)(c)
#define cl_retain_queue(q) CL_CALL(q, 10, cl_reference_fn)(q)
#define cl_release_queue(q) CL_CALL(q, 11, cl_reference_fn)(q)
#define cl_release_mem(m) CL_CALL(m, 18, cl_reference_fn)(m)
#define cl_retain_kernel(k) CL_CALL(k, 36, cl_reference_fn)(k)
#define cl_release_kernel(k) CL_CALL(k, 37, cl_reference_fn)(k)
#define cl_release_event(e) CL_CALL(e, 44, cl_reference_fn)(e)
#define cl_flush(q) CL_CALL(q, 46, cl_reference_fn)(q)
#define cl_finish(q) CL_CALL(q, 47, cl_reference_fn)(q)

typedef cl_object (*cl_create_buffer_fn)(cl_object, uint64_t, size_t, void *, int32_t *);
#define cl_create_buffer(c, flags, bytes, host, err) CL_CALL(c, 14, cl_create_buffer_fn)(c, flags, bytes, host, err)

typedef cl_object (*cl_create_queue_fn)(cl_object, cl_object, uint64_t, int32_t *);
#define cl_create_queue(c, device, err) CL_CALL(c, 9, cl_create_queue_fn)(c, device, 0, err)

/* of queues, buffers, kernels and events alike */
typedef int32_t (*cl_mem_info_fn)(cl_object, uint32_t, size_t, void *, size_t *);
#define cl_mem_info(m, name, bytes, value) CL_CALL(m, 20, cl_mem_info_fn)(m, name, bytes, value, NULL)
#define cl_queue_device(q, device) CL_CALL(q, 12, cl_mem_info_fn)(q, CL_QUEUE_DEVICE_, sizeof *(device), device, NULL)
#define cl_kernel_references(k, count) \
    CL_CALL(k, 39, cl_mem_info_fn)(k, CL_KERNEL_REFERENCES_, sizeof *(count), count, NULL)
#define cl_event_status(e, status) CL_CALL(e, 42, cl_mem_info_fn)(e, CL_EVENT_STATUS_, sizeof *(status), status, NULL)

typedef cl_object (*cl_create_kernel_fn)(cl_object, const char *, int32_t *);
#define cl_create_kernel(program, name, err) CL_CALL(program, 34, cl_create_kernel_fn)(program, name, err)

typedef int32_t (*cl_wait_fn)(uint32_t, const cl_object *);
#define cl_wait(event) CL_CALL(*(event), 41, cl_wait_fn)(1, event)
typedef int32_t (*cl_marker_fn)(cl_object, cl_object *);
#define cl_marker(q, event) CL_CALL(q, 62, cl_marker_fn)(q, event)

/* what is queued from now on begins after an event of another queue */
typedef int32_t (*cl_wait_in_queue_fn)(cl_object, uint32_t, const cl_object *, cl_object *);
#define cl_wait_in_queue(q, event) CL_CALL(q, 106, cl_wait_in_queue_fn)(q, 1, event, NULL)

typedef int32_t (*cl_set_arg_fn)(cl_object, uint32_t, size_t, const void *);
#define cl_set_arg(k, i, bytes, value) CL_CALL(k, 38, cl_set_arg_fn)(k, i, bytes, value)

typedef int32_t (*cl_set_svm_fn)(cl_object, uint32_t, const void *);
#define cl_set_arg_pointer(k, i, value) CL_CALL(k, 134, cl_set_svm_fn)(k, i, value)

/* waits: none, or one event */
typedef int32_t (*cl_read_fn)(cl_object, cl_object, uint32_t, size_t, size_t, void *, uint32_t, const cl_object *,
                              cl_object *);
#define cl_read(q, m, at, bytes, host) CL_CALL(q, 48, cl_read_fn)(q, m, 1, at, bytes, host, 0, NULL, NULL)
#define cl_read_after(q, m, at, bytes, host, waits, list, event) \
    CL_CALL(q, 48, cl_read_fn)(q, m, 0, at, bytes, host, waits, (waits) ? (list) : NULL, event)
typedef int32_t (*cl_write_fn)(cl_object, cl_object, uint32_t, size_t, size_t, const void *, uint32_t,
                               const cl_object *, cl_object *);
#define cl_write(q, m, at, bytes, host) CL_CALL(q, 49, cl_write_fn)(q, m, 1, at, bytes, host, 0, NULL, NULL)
#define cl_write_after(q, m, at, bytes, host, event) \
    CL_CALL(q, 49, cl_write_fn)(q, m, 0, at, bytes, host, 0, NULL, event)

typedef int32_t (*cl_copy_fn)(cl_object, cl_object, cl_object, size_t, size_t, size_t, uint32_t, const cl_object *,
                              cl_object *);
#define cl_copy_after(q, from, to, from_at, to_at, bytes, waits, list) \
    CL_CALL(q, 50, cl_copy_fn)(q, from, to, from_at, to_at, bytes, waits, (waits) ? (list) : NULL, NULL)

typedef void *(*cl_map_fn)(cl_object, cl_object, uint32_t, uint64_t, size_t, size_t, uint32_t, const void *, void *,
                           int32_t *);
#define cl_map(q, m, flags, bytes, err) CL_CALL(q, 56, cl_map_fn)(q, m, 1, flags, 0, bytes, 0, NULL, NULL, err)
typedef int32_t (*cl_unmap_fn)(cl_object, cl_object, void *, uint32_t, const void *, void *);
#define cl_unmap(q, m, p) CL_CALL(q, 58, cl_unmap_fn)(q, m, p, 0, NULL, NULL)

typedef int32_t (*cl_launch_fn)(cl_object, cl_object, uint32_t, const size_t *, const size_t *, const size_t *,
                                uint32_t, const cl_object *, cl_object *);
#define cl_launch(q, k, dims, global, local, waits, list, event) \
    CL_CALL(q, 59, cl_launch_fn)(q, k, dims, NULL, global, local, waits, (waits) ? (list) : NULL, event)

#endif
