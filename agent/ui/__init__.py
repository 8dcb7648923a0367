"""The page: the only Streamlit code."""
