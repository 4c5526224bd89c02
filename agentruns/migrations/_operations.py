"""Schema changes that a big, busy table on PostgreSQL survives."""

from __future__ import annotations

from typing import Any

from django.db.migrations import AddIndex, RemoveIndex


class AddIndexOnBusyTable(AddIndex):
    """Add an index; on PostgreSQL concurrently, so that writers don't wait for it.

    For migrations with `atomic = False`. What an interrupted build left is dropped first.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, concurrently=True)
            schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, concurrently=True)


class AddPartialIndexOnBusyTable(AddIndexOnBusyTable):
    """Add an index that helps only as a partial one; nothing where there are none."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.features.supports_partial_indexes:
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.features.supports_partial_indexes:
            super().database_backwards(app_label, schema_editor, *states)


class RemoveIndexOnBusyTable(RemoveIndex):
    """Remove an index; on PostgreSQL concurrently. For migrations with `atomic = False`."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            index = from_state.models[app_label, self.model_name_lower].get_index_by_name(self.name)
            schema_editor.remove_index(model, index, concurrently=True)


class RemovePartialIndexOnBusyTable(RemoveIndexOnBusyTable):
    """Remove an index that was made as a partial one only."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.features.supports_partial_indexes:
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.features.supports_partial_indexes:
            super().database_backwards(app_label, schema_editor, *states)
