"""What workers send each other: exchanges, blobs, announcements."""
