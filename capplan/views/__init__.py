"""Views: a plan as text, tables, pictures and controls; they compute nothing but GiB from bytes."""
