/** Limits that the driver does not check, or that bound what a peer may make us allocate. */

/**
 * The largest pool allocation that may be imported: 4064 MiB. The driver describes an allocation to the importer in 128
 * chunks of 32 MiB, and one of them may go to alignment; a larger one kills the importing process inside the driver.
 */
export const MAX_POOL_ALLOCATION_BYTES: number = 4064 * 1024 * 1024;

/** The largest allocation: the addresses of a device are no more. */
export const MAX_ALLOCATION_BYTES: number = 2 ** 47;

/** Chunks of one virtual allocation: each travels as a file descriptor, and Linux passes 253 in one message. */
export const MAX_VIRTUAL_CHUNKS: number = 253;
